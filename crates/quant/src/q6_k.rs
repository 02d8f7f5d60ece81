//! `q6_k`: 256 weights, 210 bytes: `ql` 128 bytes, `qh` 64 bytes, 16 × i8 scales, f16 `d`.
//!
//! Sixteen sub-blocks of 16 weights: w = (d·sc)·(q − 32). Each half of 128 weights has 64
//! bytes of `ql` and 32 of `qh`; its weight 32·g + l takes its low 4 bits from
//! `ql[l + 32·(g mod 2)]` (low nibble for g < 2) and its high 2 bits from bits 2g, 2g + 1 of
//! `qh[l]`.

use crate::blocks::{decode_each, f16_at};
use crate::{Format, FormatId};

pub(crate) const FORMAT: Format = Format {
    id: FormatId::Q6_K,
    name: "q6_k",
    block_weights: 256,
    block_bytes: 210,
    ggml_type: Some(14),
    decode: |src, dst| decode_each(src, dst, decode),
    encode: None,
};

fn decode(block: &[u8; 210], out: &mut [f32; 256]) {
    let (scales, d) = (&block[192..208], f16_at(block, 208));
    for (sub, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = d * f32::from(scales[sub] as i8);
        let (half, group, first) = (sub / 8, sub % 8 / 2, sub % 2 * 16);
        let low = &block[64 * half + 32 * (group % 2) + first..];
        let high = &block[128 + 32 * half + first..];
        for ((out, &low), &high) in out.iter_mut().zip(low).zip(high) {
            let q = ((low >> (4 * (group / 2))) & 15) | ((high >> (2 * group)) & 3) << 4;
            *out = scale * (f32::from(q) - 32.0);
        }
    }
}
