//! `f16`: IEEE 754 binary16, little-endian.

use crate::blocks::{decode_each, encode_each};
use crate::float::{f16_to_f32, f32_to_f16};
use crate::{Format, FormatId};

pub(crate) const FORMAT: Format = Format {
    id: FormatId::F16,
    name: "f16",
    block_weights: 1,
    block_bytes: 2,
    ggml_type: Some(1),
    decode: |src, dst| decode_each(src, dst, decode),
    encode: Some(|src, dst| encode_each(src, dst, encode)),
};

fn decode(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = f16_to_f32(u16::from_le_bytes(*block));
}

fn encode(weights: &[f32; 1], block: &mut [u8; 2]) {
    *block = f32_to_f16(weights[0]).to_le_bytes();
}
