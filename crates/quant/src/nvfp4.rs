//! `nvfp4`: 64 weights, 36 bytes: 4 unsigned e4m3 scales, 32 bytes of e2m1 nibbles.
//!
//! Sub-block s of 16 weights has the scale `[s]` and 8 bytes: weight j in the low nibble of
//! byte j, weight j + 8 in its high one. w = (scale/2)·v, v from the doubled table.

use crate::blocks::decode_each;
use crate::float::e4m3_to_f32;
use crate::{Format, FormatId, MXFP4_VALUES_DOUBLED};

pub(crate) const FORMAT: Format = Format {
    id: FormatId::NVFP4,
    name: "nvfp4",
    block_weights: 64,
    block_bytes: 36,
    ggml_type: Some(40),
    decode: |src, dst| decode_each(src, dst, decode),
    encode: None,
};

fn decode(block: &[u8; 36], out: &mut [f32; 64]) {
    for (s, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = half_of_ue4m3(block[s]);
        let value = |nibble: u8| scale * f32::from(MXFP4_VALUES_DOUBLED[usize::from(nibble)]);
        for (j, &byte) in block[4 + 8 * s..][..8].iter().enumerate() {
            out[j] = value(byte & 15);
            out[j + 8] = value(byte >> 4);
        }
    }
}

/// Half the value of an unsigned e4m3 byte (bias 7, the top bit unused). The pattern of its NaN,
/// 0x7f, is 0, as in ggml.
#[inline]
pub(crate) const fn half_of_ue4m3(bits: u8) -> f32 {
    0.5 * e4m3_to_f32(e4m3_of_ue4m3(bits))
}

/// The e4m3 byte of the same value.
#[inline]
pub(crate) const fn e4m3_of_ue4m3(bits: u8) -> u8 {
    if bits == 0x7f { 0 } else { bits & 0x7f }
}
