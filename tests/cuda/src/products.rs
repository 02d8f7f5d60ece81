//! Products by tensor cores: cases of the suite whose rows of x begin where those kernels want them, and are bf16 already, so
//! that results are as near as those of plain kernels.

use tokenmill_backend::Device;
use tokenmill_backend::reference::ReferenceDevice;
use tokenmill_device_tests::conformance::{
    Case, Tolerance, cases as all_cases, difference, outputs,
};
use tokenmill_ir::{Mode, NormKind, Op, Rows, View, WeightSource, op};

/// Formats that have atoms.
const FORMATS: [&str; 11] = [
    "bf16", "q8_0", "q4_0", "q4_1", "q4_k", "q6_k", "u4_32", "u4_64", "u4_128", "f8_e4m3",
    "e4m3_32",
];

/// Cases that have a norm behind the product, too.
const SUMS: [&str; 2] = ["linear q8_0 17x96", "linear of q4_k, q6_k and f32 parts"];

/// What these kernels promise where x is bf16: sums in f32, of nibbles with 128 times the sum of x.
pub const PROMISE: Tolerance = Tolerance { nmse: 1e-11, max: 1e-5 };

/// Rows of x that begin at multiples of 16 bytes and are bf16.
fn prepared(mut case: Case) -> Case {
    let mut tables = Vec::new();
    for op in &mut case.program.ops {
        match op {
            Op::Embed { table, .. } => tables.push(*table),
            Op::Linear { x, .. } | Op::GatedLinear { x, .. } => x.start = x.start / 4 * 4,
            _ => {}
        }
    }
    for table in tables {
        let spec = &case.program.weights[table.0 as usize];
        let part = &spec.parts[0];
        if part.format.info().name != "f32" {
            continue;
        }
        let rows = case.material.rows(&part.tensor, 0..spec.rows.into()).expect("a table");
        let rounded = rows.chunks(4).flat_map(|b| [0, 0, b[2], b[3]]).collect();
        let name = part.tensor.clone();
        let row_bytes = spec.cols as usize * 4;
        case.material.insert(&name, row_bytes, rounded);
    }
    case
}

/// As a layer has it: the product's results are added to other rows (part of x here), and a norm is of the sum, which is read.
fn with_sum(mut case: Case) -> Case {
    let product = case.program.ops.iter().position(|op| matches!(op, Op::Linear { .. }));
    let product = product.expect("a product");
    let Op::Linear { x, weight, out } = case.program.ops[product] else { return case };
    let cols = case.program.weights[weight.0 as usize].rows;
    let [sum, normed] = [(); 2].map(|()| case.program.buffer(Rows::Tokens, cols));
    let norm = Op::Norm(op::Norm {
        x: View { start: 3, cols, ..x },
        adds: vec![View { buffer: out, start: 0, cols }],
        sum: Some(sum.buffer),
        kind: NormKind::Rms,
        weight: None,
        offset: 0.0,
        bias: None,
        groups: 1,
        gate: None,
        eps: 1e-5,
        root: None,
        out: normed.buffer,
    });
    case.program.ops.insert(product + 1, norm);
    for op in &mut case.program.ops {
        if let Op::TakeRows { x, .. } = op {
            *x = sum;
        }
    }
    case.name.push_str(" and a sum");
    case
}

/// Products with every format that has atoms.
pub fn cases(block: u32) -> Vec<Case> {
    let of = |name: &str| {
        let mut words = name.split(' ').skip_while(|w| ["linear", "gated"].contains(w));
        let known = words.next().is_some_and(|format| FORMATS.contains(&format));
        name.starts_with("linear of q4_k") || name.contains("linear") && known
    };
    let plain = all_cases(block).into_iter().filter(|c| of(&c.name));
    let sums = all_cases(block).into_iter().filter(|c| SUMS.contains(&c.name.as_str()));
    plain.chain(sums.map(with_sum)).map(prepared).collect()
}

/// Experts in formats that have atoms; the last are of two formats, which plain kernels multiply.
const EXPERTS: [&str; 4] =
    ["experts bf16", "experts q4_k", "experts q8_0", "experts q4_k and q6_k"];

/// Products with experts, whose second ones have rows that are rounded.
pub fn experts(block: u32) -> Vec<Case> {
    let all = all_cases(block).into_iter().filter(|c| EXPERTS.contains(&c.name.as_str()));
    all.map(prepared).collect()
}

/// Such cases, by a part of their names, against the reference; what is looked up in atoms and multiplied with them, too: how
/// many there are of all.
///
/// # Errors
/// The first that is off.
pub fn check(device: &dyn Device, only: &str) -> Result<usize, String> {
    let block = device.caps().block_tokens;
    let mut all = cases(block);
    let products = all.len();
    let heads = ["tied head q8_0", "tied head q4_1"];
    all.extend(all_cases(block).into_iter().filter(|c| heads.contains(&c.name.as_str())));
    all.extend(experts(block));
    if all.len() < products + heads.len() + EXPERTS.len()
        || !all.iter().any(|c| c.name.ends_with("a sum"))
    {
        return Err(format!("{} cases", all.len()));
    }
    let some = all.iter().enumerate().filter(|(_, case)| case.name.contains(only));
    for (i, case) in some {
        let failed = |e: tokenmill_backend::DeviceError| format!("{}: {e}", case.name);
        let found = outputs(device, Mode::Bf16, case).map_err(failed)?;
        let truth = outputs(&ReferenceDevice::new(block), Mode::F32, case).map_err(failed)?;
        // (x of a head is what was looked up, and rows between products of experts are sums: rounded.)
        let limit = if i < products { PROMISE } else { Tolerance { nmse: 1e-5, max: 1e-2 } };
        for (found, truth) in found.iter().zip(&truth) {
            let error = difference(&found.rows, &truth.rows)?;
            if error.nmse > limit.nmse || error.max > limit.max {
                return Err(format!("{}: {error:?}", case.name));
            }
        }
    }
    Ok(all.len())
}
