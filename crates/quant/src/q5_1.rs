//! `q5_1`: 32 weights, 24 bytes: f16 `d`, f16 `m`, then `qh` and nibbles as in q5_0.
//! w = d·q + m.

use crate::blocks::{decode_each, encode_each, f16_at, inverse_or_zero, min_and_max, put_f16};
use crate::q5_0::{pack, unpack};
use crate::{Format, FormatId};

pub(crate) const FORMAT: Format = Format {
    id: FormatId::Q5_1,
    name: "q5_1",
    block_weights: 32,
    block_bytes: 24,
    ggml_type: Some(7),
    decode: |src, dst| decode_each(src, dst, decode),
    encode: Some(|src, dst| encode_each(src, dst, encode)),
};

fn decode(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    for (out, q) in out.iter_mut().zip(unpack(&block[4..])) {
        *out = d * f32::from(q) + m;
    }
}

fn encode(weights: &[f32; 32], block: &mut [u8; 24]) {
    let (min, max) = min_and_max(weights);
    let d = (max - min) / 31.0;
    let inverse = inverse_or_zero(d);
    let q = weights.map(|w| (((w - min) * inverse + 0.5) as u8).min(31));
    put_f16(block, 0, d);
    put_f16(block, 2, min);
    pack(&q, &mut block[4..]);
}
