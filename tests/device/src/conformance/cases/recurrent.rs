//! Recurrences, whose state lives in slots.

use tokenmill_ir::{Act, CacheKind, KeyHead, KvFormat, Op, op};
use tokenmill_quant::FormatId;

use crate::conformance::lab::Lab;
use crate::conformance::{Case, Tolerance};

pub(super) fn cases(block: u32) -> Vec<Case> {
    let mut all = Vec::new();
    for (kernel, act) in [(4, Some(Act::Silu)), (3, None), (1, None)] {
        all.push(conv(kernel, act, block));
    }
    for (k_heads, v_heads, key_head) in
        [(2, 2, KeyHead::Grouped), (2, 6, KeyHead::Grouped), (2, 6, KeyHead::Tiled)]
    {
        all.push(delta_rule(k_heads, v_heads, key_head, block));
    }
    all.extend([(4, 1), (6, 2)].map(|(heads, groups)| scan(heads, groups, block)));
    all
}

fn conv(kernel: u32, act: Option<Act>, block: u32) -> Case {
    let mut lab = Lab::new(40);
    let channels = 50;
    let x = lab.inputs(&[channels])[0];
    let weight = lab.table(FormatId::F32, channels, kernel);
    let bias = act.map(|_| lab.vector(channels, 0.0, 0.5));
    let state = lab.cache(CacheKind::State { len: (kernel - 1) * channels }, KvFormat::F32);
    let out = lab.out(channels);
    lab.push(Op::Conv(op::Conv { x, weight, kernel, bias, act, state, out: out.buffer }));
    lab.finish(format!("convolution of {kernel} taps"), out, Tolerance::F32, block)
}

fn delta_rule(k_heads: u32, v_heads: u32, key_head: KeyHead, block: u32) -> Case {
    let mut lab = Lab::new(41);
    let (k_dim, v_dim) = (24, 20);
    let keys = k_heads * k_dim;
    let inputs = lab.inputs(&[keys, keys, v_heads * v_dim, v_heads, v_heads]);
    let (a_log, dt_bias) = (lab.vector(v_heads, -1.0, 0.5), lab.vector(v_heads, 0.0, 0.5));
    let state = lab.cache(CacheKind::State { len: v_heads * k_dim * v_dim }, KvFormat::F32);
    let out = lab.out(v_heads * v_dim);
    lab.push(Op::DeltaRule(op::DeltaRule {
        q: inputs[0],
        k: inputs[1],
        v: inputs[2],
        a: inputs[3],
        b: inputs[4],
        a_log,
        dt_bias,
        k_heads,
        v_heads,
        key_head,
        state,
        out: out.buffer,
    }));
    let tolerance = Tolerance { nmse: 1e-8, max: 1e-3 };
    lab.finish(
        format!("delta rule, {v_heads} heads on {k_heads}, {key_head:?}"),
        out,
        tolerance,
        block,
    )
}

fn scan(heads: u32, groups: u32, block: u32) -> Case {
    let mut lab = Lab::new(42);
    let (head_dim, state_dim) = (12, 16);
    let inner = heads * head_dim;
    let inputs = lab.inputs(&[inner, groups * state_dim, groups * state_dim, heads]);
    let (a_log, skip) = (lab.vector(heads, -1.0, 0.5), lab.vector(heads, 1.0, 0.5));
    let dt_bias = lab.vector(heads, 0.0, 0.5);
    let state = lab.cache(CacheKind::State { len: inner * state_dim }, KvFormat::F32);
    let out = lab.out(inner);
    lab.push(Op::Scan(op::Scan {
        x: inputs[0],
        b: inputs[1],
        c: inputs[2],
        dt: inputs[3],
        a_log,
        skip,
        dt_bias,
        heads,
        groups,
        dt_limit: (0.1, 1.2),
        state,
        out: out.buffer,
    }));
    let tolerance = Tolerance { nmse: 1e-8, max: 1e-3 };
    lab.finish(format!("scan, {heads} heads in {groups} groups"), out, tolerance, block)
}
