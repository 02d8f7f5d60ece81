//! Rows in the place of tokens: embedded, by columns, positions gathered from tables, rows merged.

use tokenmill_ir::{Batch, Limits, Op, OutputKind, Program, Rows, TokenSource};
use tokenmill_quant::FormatId;

use crate::conformance::lab::Lab;
use crate::conformance::pager::IDS;
use crate::conformance::{Case, Tolerance, pager};

pub(super) fn cases(block: u32) -> Vec<Case> {
    let mut all = vec![embedded(block), columns(block), merged(block)];
    all.extend([1, 4, 16].map(|taps| gathered(taps, block)));
    all
}

/// Steps in which most tokens are rows, in another order than they lie in; numbers by `number`.
fn with_rows(
    program: &Program,
    (limits, block): (&Limits, u32),
    number: impl Fn(usize, usize) -> f32,
) -> Vec<Batch> {
    let cols = program.input_cols as usize;
    let mut steps = pager::steps(program, limits, block);
    for (s, batch) in steps.iter_mut().enumerate() {
        let rows = batch.tokens.len();
        for (i, token) in batch.tokens.iter_mut().enumerate().filter(|(i, _)| (i + s) % 4 != 0) {
            *token = TokenSource::Embedding((rows - 1 - i) as u32);
        }
        let number = |i: usize| number(i / cols + 7 * s, i % cols);
        batch.embeddings = (0..rows * cols).map(number).collect();
    }
    steps
}

/// A number between −2 and 2 of a row and a column.
fn wave(row: usize, col: usize) -> f32 {
    ((row * 389 + col * 71) % 401) as f32 / 100.0 - 2.0
}

fn embedded(block: u32) -> Case {
    let mut lab = Lab::new(80);
    let k = 96;
    let table = lab.table(FormatId::Q8_0, IDS, k);
    let positions = Some(lab.table(FormatId::F32, 80, k));
    let token_types = Some(lab.table(FormatId::F16, 2, k));
    let x = lab.out(k);
    lab.program.input_cols = k + 5;
    lab.push(Op::Embed { table, scale: 1.5, positions, token_types, out: x.buffer });
    let name = "rows embedded beside tokens".into();
    lab.finish_with(name, x, Tolerance::F32, block, |program, limits, block| {
        with_rows(program, (limits, block), wave)
    })
}

fn columns(block: u32) -> Case {
    let mut lab = Lab::new(81);
    let x = lab.out(37);
    lab.program.input_cols = 70;
    lab.push(Op::Input { start: 20, out: x.buffer });
    let name = "columns of rows".into();
    lab.finish_with(name, x, Tolerance::F32, block, |program, limits, block| {
        with_rows(program, (limits, block), wave)
    })
}

/// Of `taps` rows of a table; some ids are beyond it.
fn gathered(taps: u32, block: u32) -> Case {
    let mut lab = Lab::new(82);
    let table = lab.table(FormatId::F16, 21, 40);
    let (ids, x) = (lab.out(2 * taps), lab.out(40));
    lab.program.input_cols = 3 + 2 * taps;
    lab.push(Op::Input { start: 3, out: ids.buffer });
    lab.push(Op::Gather { x: ids, table, out: x.buffer });
    let name = format!("rows of a table, {taps} weighted");
    let number = move |row: usize, col: usize| match col {
        col if col < 3 => 1e9,
        col if col < 3 + taps as usize => ((row * 5 + col * 3) % 23) as f32,
        // No weight for some.
        col => wave(row, col).max(-1.0) + 1.0,
    };
    lab.finish_with(name, x, Tolerance::F32, block, move |program, limits, block| {
        with_rows(program, (limits, block), number)
    })
}

/// Three rows after one another side by side, and beside them three of something else.
fn merged(block: u32) -> Case {
    let mut lab = Lab::new(83);
    let inputs = lab.inputs(&[4, 17, 6]);
    let [first, second] = [51, 18].map(|cols| lab.program.buffer(Rows::Outputs, cols));
    lab.push(Op::TakeRows { x: inputs[1], run: 3, out: first.buffer });
    lab.push(Op::TakeRows { x: inputs[2], run: 3, out: second.buffer });
    lab.program.hidden = 51 + 18;
    lab.push(Op::Sample { logits: None, hidden: first, more: vec![second] });
    let name = "rows merged by three, two results".into();
    lab.case(name, Tolerance::F32, block, |program, limits, block| {
        let mut steps = pager::steps(program, limits, block);
        for batch in &mut steps {
            let Batch { spans, outputs, .. } = batch;
            let inside =
                |row: u32| spans.iter().any(|s| s.first <= row && row + 3 <= s.first + s.len);
            // (Runs may overlap.)
            outputs.retain(|o| o.kind == OutputKind::Hidden && inside(o.row) && o.row % 5 != 3);
        }
        steps.retain(|batch| !batch.outputs.is_empty());
        steps
    })
}
