//! No number of a tensor is passed over: the rows that a program takes of a tensor are all it has.
//! Else the hyper-parameters describe a smaller model than the file holds, such as one with half of
//! its key heads.

use std::collections::{HashMap, HashSet};

use tokenmill_ir::{Checkpoint, Program, RowPart};

use crate::error::ModelError;

/// The tensors of which `program` takes some numbers only, the `partial` ones left out.
pub(super) fn check(
    program: &Program,
    checkpoint: &Checkpoint,
    partial: &HashSet<String>,
) -> Result<(), ModelError> {
    let mut taken: HashMap<&str, HashSet<[u64; 6]>> = HashMap::new();
    let mut numbers: HashMap<&str, u64> = HashMap::new();
    let mut take = |part: &'_ RowPart, columns: Option<u64>| {
        let Some(t) = checkpoint.tensor(&part.tensor) else { return };
        let (first, width) = match part.transposed {
            Some(c) => (c.start, c.count),
            None => (0, columns.unwrap_or(t.cols())),
        };
        let r = part.rows;
        // The same rows may be in use twice: a tied head, keys that are values.
        let place = [r.start, r.count, r.stride, r.repeat, first, width];
        if taken.entry(&t.name).or_default().insert(place) {
            *numbers.entry(&t.name).or_default() += r.len().saturating_mul(width);
        }
    };
    for weight in &program.weights {
        weight.parts.iter().for_each(|part| take(part, None));
        // Their rows count numbers.
        weight.bias.iter().for_each(|part| take(part, Some(1)));
    }
    for t in &checkpoint.tensors {
        let all: u64 = t.shape.iter().product();
        let Some(&found) = numbers.get(t.name.as_str()) else { continue };
        if found < all && !partial.contains(&t.name) {
            return Err(ModelError::Shape {
                tensor: t.name.clone(),
                expected: format!("{found} numbers"),
                found: format!("{:?}, {all} numbers", t.shape),
            });
        }
    }
    Ok(())
}
