//! Embedding, norms, products, elementwise maps.

use tokenmill_ir::{
    Act, Columns, Expr, GateAct, GateOrder, NormKind, Op, RowPart, RowSlices, Rows, Unary,
    WeightUse, op,
};
use tokenmill_quant::{FORMATS, FormatId};

use crate::conformance::lab::Lab;
use crate::conformance::pager::IDS;
use crate::conformance::{Case, Tolerance};

/// Widths of products; those that are whole blocks of a format are taken.
const WIDTHS: [u32; 7] = [64, 96, 576, 640, 896, 256, 768];

pub(super) fn cases(block: u32) -> Vec<Case> {
    let mut all = Vec::new();
    for format in FORMATS.iter().map(|f| f.id).filter(|f| f.is_weight()) {
        all.push(embed(format, block));
        let fits = |k: &&u32| format.row_bytes(u64::from(**k)).is_some();
        for (i, &k) in WIDTHS.iter().filter(fits).enumerate() {
            all.push(linear(format, [40, 17, 7, 64, 33][i % 5], k, block));
        }
        all.push(gated_linear(format, block));
    }
    all.push(parts(block));
    all.push(slices(block));
    all.extend([bands(block, 0), bands(block, 64)]);
    all.extend([reordered(block, 1), reordered(block, 3)]);
    all.extend(TURNED.map(|(format, latent, step)| transposed(format, latent, step, block)));
    all.extend(norms(block));
    let formats = [FormatId::F32, FormatId::Q8_0, FormatId::E4M3_32, FormatId::EXL3_4];
    all.extend(formats.map(|format| head_linear(format, block)));
    all.push(clamped(block));
    all.extend(maps(block));
    all
}

/// The tolerance of a product with weights in `format`.
pub(super) fn product_tolerance(format: FormatId) -> Tolerance {
    if format == FormatId::F32 { Tolerance::F32 } else { Tolerance::ENCODED }
}

fn embed(format: FormatId, block: u32) -> Case {
    let mut lab = Lab::new(1);
    let k = 768;
    let table = lab.table(format, IDS, k);
    let positions = Some(lab.table(FormatId::F32, 80, k));
    let token_types = Some(lab.table(FormatId::F16, 2, k));
    let x = lab.out(k);
    lab.push(Op::Embed { table, scale: 1.5, positions, token_types, out: x.buffer });
    lab.finish(format!("embed {format}"), x, Tolerance::F32, block)
}

fn linear(format: FormatId, rows: u32, k: u32, block: u32) -> Case {
    let mut lab = Lab::new(u64::from(rows * k));
    // The operand begins inside its buffer.
    let x = lab.inputs(&[5, k, 3])[1];
    let weight = lab.matrix(format, rows, k);
    if rows % 2 == 1 {
        lab.add_bias(weight);
    }
    let out = lab.out(rows);
    lab.push(Op::Linear { x, weight, out: out.buffer });
    lab.finish(format!("linear {format} {rows}x{k}"), out, product_tolerance(format), block)
}

/// Unlike formats in one row space, with biases and factors.
fn parts(block: u32) -> Case {
    let mut lab = Lab::new(3);
    let k = 256;
    let x = lab.inputs(&[k])[0];
    let parts = vec![
        lab.part(FormatId::Q4_K, 21, k),
        lab.part(FormatId::Q6_K, 16, k),
        lab.part(FormatId::F32, 3, k),
    ];
    let weight = lab.of_parts(WeightUse::Matmul, k, parts);
    lab.add_bias(weight);
    lab.program.weights[weight.0 as usize].scales = vec![(10, 0.5), (5, 1.0), (25, -2.0)];
    let out = lab.out(40);
    lab.push(Op::Linear { x, weight, out: out.buffer });
    lab.finish("linear of q4_k, q6_k and f32 parts".into(), out, Tolerance::ENCODED, block)
}

/// Columns stored in another order: one order for two formats, another, and none, in one row space.
fn reordered(block: u32, heads: u32) -> Case {
    let mut lab = Lab::new(9);
    let k = 96;
    let x = lab.inputs(&[heads * k])[0];
    let order = |step: u32| Some((0..k).map(|j| (j * step + 5) % k).collect());
    let formats = match heads {
        1 => [FormatId::Q4_0, FormatId::Q8_0, FormatId::Q8_0, FormatId::F32, FormatId::Q4_0],
        _ => [FormatId::U4_32; 5],
    };
    let orders = match heads {
        1 => [order(7), order(7), order(11), order(11), None],
        _ => [0; 5].map(|_| order(11)),
    };
    let parts = formats.into_iter().zip(orders).map(|(format, order)| {
        let part = lab.part(format, 21, k);
        RowPart { order, ..part }
    });
    let parts = parts.collect();
    let weight = lab.of_parts(WeightUse::Matmul, k, parts);
    let out = lab.out(105);
    match heads {
        1 => lab.push(Op::Linear { x, weight, out: out.buffer }),
        _ => lab.push(Op::HeadLinear { x, heads, weight, out: out.buffer }),
    }
    lab.finish(
        format!("linear of reordered columns, {heads} heads"),
        out,
        Tolerance::ENCODED,
        block,
    )
}

/// Strided rows of an interleaved tensor, twice.
fn slices(block: u32) -> Case {
    let mut lab = Lab::new(4);
    let k = 96;
    let x = lab.inputs(&[k])[0];
    let mut part = lab.part(FormatId::Q8_0, 60, k);
    part.rows = RowSlices { start: 3, count: 5, stride: 12, repeat: 4 };
    let mut other = part.clone();
    other.rows = RowSlices { start: 8, count: 7, stride: 12, repeat: 4 };
    let weight = lab.of_parts(WeightUse::Matmul, k, vec![part, other]);
    let out = lab.out(48);
    lab.push(Op::Linear { x, weight, out: out.buffer });
    lab.finish("linear of strided rows".into(), out, Tolerance::ENCODED, block)
}

/// Bands of EXL3 of unlike bits, whole ones or with rows that cut them.
fn bands(block: u32, first: u64) -> Case {
    let mut lab = Lab::new(6);
    let k = 384;
    let x = lab.inputs(&[k])[0];
    let plain = lab.part(FormatId::EXL3_6, 128, k);
    let format = if first == 0 { FormatId::EXL3_7 } else { FormatId::EXL3_4 };
    let mut taken = lab.part(format, 384, k);
    taken.rows = RowSlices { start: first, count: 128, stride: 256, repeat: 2 - first / 64 };
    let weight = lab.of_parts(WeightUse::Matmul, k, vec![plain, taken]);
    let out = lab.out(lab.program.weights[weight.0 as usize].rows);
    lab.push(Op::Linear { x, weight, out: out.buffer });
    lab.finish(format!("linear of bands from row {first}"), out, Tolerance::ENCODED, block)
}

/// Formats that are read transposed, of so many columns, and the order of these: a step from each to the next.
const TURNED: [(FormatId, u32, Option<u32>); 6] = [
    (FormatId::F32, 40, None),
    (FormatId::F32, 40, Some(7)),
    (FormatId::U4_32, 64, Some(11)),
    (FormatId::U4_64, 64, None),
    (FormatId::E4M3_32, 96, None),
    (FormatId::EXL3_4, 128, None),
];

/// Slices of rows read transposed, as the key matrices of latent attention are.
fn transposed(format: FormatId, latent: u32, step: Option<u32>, block: u32) -> Case {
    let mut lab = Lab::new(5);
    // (Whole bands of rows, all heads together.)
    let (heads, nope, value) = if format.band_rows() > 1 { (4, 20, 12) } else { (3, 12, 8) };
    let x = lab.inputs(&[heads * nope])[0];
    let mut part = lab.part(format, heads * (nope + value), latent);
    let stride = u64::from(nope + value);
    part.rows = RowSlices { start: 0, count: nope.into(), stride, repeat: heads.into() };
    part.transposed = Some(Columns::all(latent.into()));
    part.order = step.map(|step| (0..latent).map(|j| (j * step + 5) % latent).collect());
    let weight = lab.of_parts(WeightUse::Matmul, nope, vec![part]);
    let out = lab.out(heads * latent);
    lab.push(Op::HeadLinear { x, heads, weight, out: out.buffer });
    let order = step.map_or(String::new(), |step| format!(", its columns by {step}"));
    let name = format!("head linear of transposed {format}{order}");
    lab.finish(name, out, Tolerance::F32, block)
}

fn head_linear(format: FormatId, block: u32) -> Case {
    let mut lab = Lab::new(6);
    // (Bands are of whole heads, as DeepSeek's values are.)
    let (heads, k, n) = if format.band_rows() > 1 { (2, 128, 128) } else { (5, 64, 24) };
    let x = lab.inputs(&[heads * k])[0];
    let weight = lab.matrix(format, heads * n, k);
    let out = lab.out(heads * n);
    lab.push(Op::HeadLinear { x, heads, weight, out: out.buffer });
    lab.finish(format!("head linear {format}"), out, product_tolerance(format), block)
}

fn gated_linear(format: FormatId, block: u32) -> Case {
    let mut lab = Lab::new(7);
    let k = 256;
    let x = lab.inputs(&[k])[0];
    let (gate, up) = (lab.matrix(format, 50, k), lab.matrix(format, 50, k));
    let out = lab.out(50);
    let act = GateAct::Plain(if format == FormatId::F16 { Act::GeluTanh } else { Act::Silu });
    lab.push(Op::GatedLinear { x, gate, up, act, out: out.buffer });
    let mut tolerance = product_tolerance(format);
    tolerance.nmse *= 4.0;
    lab.finish(format!("gated linear {format}"), out, tolerance, block)
}

fn clamped(block: u32) -> Case {
    let mut lab = Lab::new(8);
    let x = lab.inputs(&[64])[0];
    let (gate, up) = (lab.matrix(FormatId::F32, 24, 64), lab.matrix(FormatId::F32, 24, 64));
    lab.add_bias(gate);
    lab.add_bias(up);
    let out = lab.out(24);
    let act = GateAct::Clamped { alpha: 1.702, limit: 0.8 };
    lab.push(Op::GatedLinear { x, gate, up, act, out: out.buffer });
    lab.finish("gated linear, clamped".into(), out, Tolerance::F32, block)
}

fn norms(block: u32) -> Vec<Case> {
    let mut all = Vec::new();
    for (i, kind) in [NormKind::Rms, NormKind::Layer].into_iter().enumerate() {
        for cols in [96, 576, 63] {
            let mut lab = Lab::new(9);
            let inputs = lab.inputs(&[cols, 2, cols, cols]);
            let weight = Some(lab.vector(cols, 1.0, 0.3));
            let bias = (i == 1).then(|| lab.vector(cols, 0.0, 0.5));
            let (sum, root, out) = (lab.out(cols), lab.out(1), lab.out(cols));
            lab.push(Op::Norm(op::Norm {
                x: inputs[0],
                adds: vec![inputs[2], inputs[3]],
                sum: Some(sum.buffer),
                kind,
                weight,
                offset: 1.0,
                bias,
                groups: 1,
                gate: None,
                eps: 0.01,
                root: Some(root.buffer),
                out: out.buffer,
            }));
            let both = lab.out(cols);
            let rooted = Expr::Mul(Box::new(Expr::Arg(1)), Box::new(Expr::Arg(2)));
            let expr = Expr::Add(Box::new(Expr::Arg(0)), Box::new(rooted.scaled(0.3)));
            lab.push(Op::Map { expr, args: vec![out, sum, root], out: both.buffer });
            let name = format!("norm {kind:?} of a sum, {cols} columns");
            all.push(lab.finish(name, both, Tolerance::F32, block));
        }
    }
    for (order, shared) in [(GateOrder::BeforeNorm, false), (GateOrder::AfterNorm, true)] {
        let mut lab = Lab::new(10);
        let inputs = lab.inputs(&[120, 120]);
        let weight = Some(lab.vector(if shared { 40 } else { 120 }, 1.0, 0.3));
        let out = lab.out(120);
        lab.push(Op::Norm(op::Norm {
            x: inputs[0],
            adds: Vec::new(),
            sum: None,
            kind: NormKind::Rms,
            weight,
            offset: 0.0,
            bias: None,
            groups: 3,
            gate: Some((inputs[1], order)),
            eps: 1e-6,
            root: None,
            out: out.buffer,
        }));
        all.push(lab.finish(format!("norm in groups, gate {order:?}"), out, Tolerance::F32, block));
    }
    all
}

fn maps(block: u32) -> Vec<Case> {
    let arg = |f| Expr::Arg(0).apply(f);
    let product = Expr::Mul(Box::new(Expr::Arg(0)), Box::new(Expr::Arg(3).apply(Unary::Sigmoid)));
    let long = Expr::Add(Box::new(product), Box::new(Expr::mul(1, 2).scaled(-0.7)));
    let mut list = vec![("four operands".to_owned(), long), ("sum".to_owned(), Expr::add(0, 1))];
    for act in [Act::Silu, Act::Gelu, Act::GeluTanh, Act::Relu, Act::ReluSquared] {
        list.push((format!("{act:?}"), arg(Unary::Act(act))));
    }
    list.push(("tanh".to_owned(), arg(Unary::Tanh)));
    let mut all = Vec::new();
    for (name, expr) in list {
        let mut lab = Lab::new(11);
        let mut args = lab.inputs(&[77, 77, 77, 1]);
        let wide = Expr::Arg(0).scaled(3.0);
        let scaled = lab.out(77);
        lab.push(Op::Map { expr: wide, args: vec![args[0]], out: scaled.buffer });
        args[0] = scaled;
        let out = lab.program.buffer(Rows::Tokens, 77);
        lab.push(Op::Map { expr, args, out: out.buffer });
        all.push(lab.finish(format!("map {name}"), out, Tolerance::F32, block));
    }
    all
}
