//! `bf16`: the upper half of an f32, little-endian; rounded to nearest even when encoded.

use crate::blocks::{decode_each, encode_each};
use crate::float::{bf16_to_f32, f32_to_bf16};
use crate::{Format, FormatId};

pub(crate) const FORMAT: Format = Format {
    id: FormatId::BF16,
    name: "bf16",
    block_weights: 1,
    block_bytes: 2,
    ggml_type: Some(30),
    decode: |src, dst| decode_each(src, dst, decode),
    encode: Some(|src, dst| encode_each(src, dst, encode)),
};

fn decode(block: &[u8; 2], out: &mut [f32; 1]) {
    out[0] = bf16_to_f32(u16::from_le_bytes(*block));
}

fn encode(weights: &[f32; 1], block: &mut [u8; 2]) {
    *block = f32_to_bf16(weights[0]).to_le_bytes();
}
