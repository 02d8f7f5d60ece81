//! Stored rows into panels, and a row out of its panel again.

use super::layout::{PanelLayout, PanelSpec, float_table, table, written_out_table};
use super::planes::{codes_of_row, put_codes, put_float, put_fours, put_pair, put_sixes};
use super::{BLOCK_COLS, PANEL_ROWS};
use super::{books, trellis};
use tokenmill_quant::FormatId;
use tokenmill_quant::fields::Fields;
use tokenmill_quant::float::{bf16_factor, bf16_to_f32, e4m3_to_f32, e8m0_to_f32_half, f16_to_f32};

impl PanelSpec {
    /// Repacks the stored rows of one panel: `src` holds rows `16·panel ..` of the matrix, as
    /// many as the panel has (fewer than 16 in the last one); `dst` is the panel's bytes.
    ///
    /// Panels are independent, so threads may each repack, and first touch, their own.
    ///
    /// # Panics
    /// If the lengths of `src` and `dst` are not those of the panel.
    pub fn repack_panel(&self, panel: usize, src: &[u8], dst: &mut [u8]) {
        let row_bytes = self.stored_row_bytes();
        let rows = PANEL_ROWS.min(self.rows() - panel * PANEL_ROWS);
        assert_eq!(src.len(), rows * row_bytes, "stored bytes of the panel's rows");
        assert_eq!(dst.len(), self.panel_bytes(), "bytes of the panel");
        dst.fill(0);
        // A copy of the code for each format of codes, in which its sizes are constants.
        macro_rules! by_format {
            ($($id:ident)*) => {
                match self.format() {
                    format if PanelLayout::written_out(format).is_some() => {
                        books::repack(self, row_bytes, src, dst);
                    }
                    $(FormatId::$id => repack_codes(FormatId::$id, row_bytes, src, dst),)*
                    FormatId::BF16 => repack_pairs(row_bytes, src, dst),
                    FormatId::F16 => repack_floats::<2>(row_bytes, src, dst),
                    FormatId::F32 => repack_floats::<4>(row_bytes, src, dst),
                    other => unreachable!("{other} has no panels of its own"),
                }
            };
        }
        by_format!(
            Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K MXFP4 NVFP4 TQ1_0 TQ2_0
            IQ4_NL IQ4_XS
            U2_32 U2_64 U2_128 U3_32 U3_64 U3_128
            U4_32 U4_64 U4_128 U8_32 U8_64 U8_128 FP4_F32 E4M3_32 NF4_64 FP4_64
        );
    }

    /// Repacks a run of whole panels, `first` and following; `src` holds their rows.
    ///
    /// # Panics
    /// If the lengths of `src` and `dst` are not those of a run of panels.
    pub fn repack(&self, first: usize, src: &[u8], dst: &mut [u8]) {
        if let PanelLayout::Trellis(bits) = self.layout() {
            return trellis::repack(bits.into(), self.cols(), src, dst);
        }
        let per_panel = self.stored_row_bytes() * PANEL_ROWS;
        assert_eq!(dst.len() / self.panel_bytes(), src.len().div_ceil(per_panel), "panel count");
        let panels = dst.chunks_exact_mut(self.panel_bytes());
        for (p, (src, dst)) in src.chunks(per_panel).zip(panels).enumerate() {
            self.repack_panel(first + p, src, dst);
        }
    }

    /// Row `row` of a matrix in panels as f32, equal bit for bit to the stored row decoded.
    ///
    /// # Panics
    /// If `data` is not the whole matrix, `out` not one row, or `row` beyond the matrix.
    pub fn row(&self, data: &[u8], row: usize, out: &mut [f32]) {
        assert!(row < self.rows() && data.len() == self.bytes() && out.len() == self.cols());
        let panel = &data[row / PANEL_ROWS * self.panel_bytes()..][..self.panel_bytes()];
        let lane = row % PANEL_ROWS;
        if let PanelLayout::Trellis(bits) = self.layout() {
            let band = self.band_panels() * self.panel_bytes();
            let at = row / self.format().band_rows() * band;
            return trellis::row(bits.into(), self.cols(), &data[at..at + band], row, out);
        }
        match self.layout().group() {
            Some(_) => {
                for (b, out) in out.as_chunks_mut::<BLOCK_COLS>().0.iter_mut().enumerate() {
                    *out = self.lane(panel, b, lane).weights();
                }
            }
            None => decode_float_row(self.layout(), panel, lane, out),
        }
    }
}

/// Rows of codes with scales, into one panel.
#[inline(always)]
fn repack_codes(format: FormatId, row_bytes: usize, src: &[u8], dst: &mut [u8]) {
    let Some(layout) = PanelLayout::of(format) else { return };
    let Some(group) = layout.group() else { return };
    let info = format.info();
    let blocks_per_stored = info.block_weights / BLOCK_COLS;
    let mut fields = Fields::ZERO;
    // All rows of a stored block, then the next: what is written stays in the nearest cache.
    for i in 0..row_bytes / info.block_bytes {
        for (row, src) in src.chunks_exact(row_bytes).enumerate() {
            fields.read(format, &src[i * info.block_bytes..][..info.block_bytes]);
            for (s, codes) in fields.codes[..blocks_per_stored].iter().enumerate() {
                let b = i * blocks_per_stored + s;
                let bytes = &mut dst[b / group.blocks * group.bytes()..][..group.bytes()];
                let (scales, codes_at) = bytes.split_at_mut(group.scale_bytes);
                put_scales(layout, (b % group.blocks, s), row, &fields, scales);
                let at = b % group.blocks * group.block_bytes();
                let codes = match layout {
                    // Codes around 8 are codes around 1.
                    PanelLayout::Ternary => codes.map(|word| word.wrapping_sub(0x0707_0707)),
                    _ => *codes,
                };
                put_codes(group, row, &codes, &mut codes_at[at..][..group.block_bytes()]);
            }
        }
    }
}

/// Rows of numbers of `SIZE` bytes: `[column][row]`.
fn repack_floats<const SIZE: usize>(row_bytes: usize, src: &[u8], dst: &mut [u8]) {
    const COLS: usize = 64;
    for (i, dst) in dst.as_chunks_mut::<SIZE>().0.chunks_mut(COLS * PANEL_ROWS).enumerate() {
        for (row, src) in src.chunks_exact(row_bytes).enumerate() {
            let numbers = &src.as_chunks::<SIZE>().0[i * COLS..];
            for (column, number) in dst.chunks_exact_mut(PANEL_ROWS).zip(numbers) {
                column[row] = *number;
            }
        }
    }
}

/// Rows of bf16: `[pair of columns][row]`, the second column of a pair before the first.
fn repack_pairs(row_bytes: usize, src: &[u8], dst: &mut [u8]) {
    if row_bytes.is_multiple_of(4) {
        repack_floats::<4>(row_bytes, src, dst);
    } else {
        for (row, src) in src.chunks_exact(row_bytes).enumerate() {
            let pairs = dst.as_chunks_mut::<4>().0.chunks_exact_mut(PANEL_ROWS);
            for (pair, numbers) in pairs.zip(src.chunks(4)) {
                pair[row][..numbers.len()].copy_from_slice(numbers);
            }
        }
    }
    for pair in dst.as_chunks_mut::<4>().0 {
        let [a, b, c, d] = *pair;
        let [first, second] = [[a, b], [c, d]].map(|bits| bf16_factor(u16::from_le_bytes(bits)));
        *pair = (u32::from(first) << 16 | u32::from(second)).to_le_bytes();
    }
}

/// Stores the scales of block `b` of a group, block `stored_block` of what is stored together,
/// for one row; what blocks share is stored by each.
#[inline(always)]
fn put_scales(
    layout: PanelLayout,
    (b, stored_block): (usize, usize),
    row: usize,
    fields: &Fields,
    scales: &mut [u8],
) {
    let mut put = |at: usize, bits: u16| {
        scales[at + 2 * row..][..2].copy_from_slice(&bits.to_le_bytes());
    };
    match layout {
        PanelLayout::Zero4 | PanelLayout::Zero5 | PanelLayout::Zero8 | PanelLayout::HalfTable => {
            put(32 * b, fields.d);
        }
        PanelLayout::Min4 | PanelLayout::Min5 => {
            put(0, fields.d);
            put(32, fields.m);
        }
        PanelLayout::Super4 | PanelLayout::Super5 => {
            put(0, fields.d);
            put(32, fields.m);
            scales[64 + 16 * b + row] = fields.sub_scales[b];
            scales[192 + 16 * b + row] = fields.sub_mins[b];
        }
        PanelLayout::Super6 => {
            put_float(scales, 0, row, f16_to_f32(fields.d));
            put_pair(scales, 64 + 32 * b, row, &fields.sub_scales[2 * b..]);
        }
        PanelLayout::Super2 => {
            put(0, fields.d);
            put(32, fields.m);
            put_fours(scales, 64 + 32 * b, row, &fields.sub_scales[2 * b..]);
            put_fours(scales, 80 + 32 * b, row, &fields.sub_mins[2 * b..]);
        }
        PanelLayout::Super3 => {
            put(0, fields.d);
            put_sixes(scales, 32 + 24 * b, row, &fields.sub_scales[2 * b..]);
        }
        PanelLayout::Ternary => put(0, fields.d),
        PanelLayout::Table4 => scales[16 * b + row] = fields.d as u8,
        PanelLayout::SuperTable => {
            put_float(scales, 0, row, fields.floats[0]);
            scales[64 + 16 * b + row] = fields.sub_scales[2 * b];
        }
        PanelLayout::Nvfp4 => put_pair(scales, 0, row, &fields.sub_scales[stored_block % 2 * 2..]),
        PanelLayout::FloatTable16 => {
            let first = 2 * (stored_block % 2);
            put_float(scales, 0, row, fields.floats[first]);
            put_float(scales, 64, row, fields.floats[first + 1]);
        }
        layout if layout.is_flat() => {
            put_float(scales, 0, row, fields.floats[0]);
            put_float(scales, 64, row, fields.floats[1]);
        }
        PanelLayout::Float8 | PanelLayout::Lookup4 => put_float(scales, 0, row, fields.floats[0]),
        // The others have ways of their own.
        _ => {}
    }
}

/// One row of one block: 32 codes and their scales.
///
/// Column c weighs `(codes[c] − zero)·scales[c / 16] + mins[c / 16]`, rounded once, exactly as
/// the stored format decodes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lane {
    /// Codes in column order; for tables of integers their values, raised by `zero`.
    pub codes: [u8; BLOCK_COLS],
    /// The code that weighs nothing (before `mins`).
    pub zero: u8,
    /// Scale of columns 0–15 and of columns 16–31.
    pub scales: [f32; 2],
    /// What is added to every weight of the halves; −0 where the layout has no minima.
    pub mins: [f32; 2],
    /// What codes stand for.
    pub values: Values,
}

/// What the codes of a row stand for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Values {
    /// Integers.
    Integers,
    /// e4m3 floats.
    E4m3,
    /// Entries of a table.
    Table(&'static [f32; 16]),
}

impl Lane {
    /// The 32 weights.
    pub fn weights(&self) -> [f32; BLOCK_COLS] {
        std::array::from_fn(|c| {
            let code = match self.values {
                Values::Integers => f32::from(self.codes[c]) - f32::from(self.zero),
                Values::E4m3 => e4m3_to_f32(self.codes[c]),
                Values::Table(table) => table[usize::from(self.codes[c])],
            };
            code.mul_add(self.scales[c / 16], self.mins[c / 16])
        })
    }
}

impl PanelSpec {
    /// Row `row` (0..16) of block `block` of one panel of an integer layout.
    ///
    /// # Panics
    /// If the layout is a float one, or `panel` does not hold the block.
    pub fn lane(&self, panel: &[u8], block: usize, row: usize) -> Lane {
        let group = self.layout().group().expect("an integer layout");
        let bytes = &panel[block / group.blocks * group.bytes()..][..group.bytes()];
        let b = block % group.blocks;
        if self.layout().is_book() || self.layout().is_value_book() {
            let (codes, scales) = match self.layout().is_book() {
                true => books::lane(self, bytes, b, row),
                false => books::lane_of_values(self, bytes, b, row),
            };
            let (zero, mins) = (self.layout().zero(), [-0.0; 2]);
            return Lane { codes, zero, scales, mins, values: Values::Integers };
        }
        let codes = &bytes[group.scale_bytes + b * group.block_bytes()..][..group.block_bytes()];
        lane_of_group(self, bytes, b, row, codes_of_row(group, codes, row))
    }
}

/// What codes stand for where they are indices.
fn values_of(spec: &PanelSpec) -> &'static [u8; 16] {
    match PanelLayout::written_out(spec.format()) == Some(spec.layout()) {
        true => written_out_table(spec.format()),
        false => table(spec.format()),
    }
}

/// Puts the scales of block `b` of a group beside the codes of one of its rows.
fn lane_of_group(
    spec: &PanelSpec,
    bytes: &[u8],
    b: usize,
    row: usize,
    codes: [u8; BLOCK_COLS],
) -> Lane {
    use PanelLayout::*;
    let layout = spec.layout();
    let half = |at: usize| {
        let at = at + 2 * row;
        f16_to_f32(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
    };
    let full = |at: usize| {
        let at = at + 4 * row;
        f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    };
    let signed = |at: usize| f32::from(bytes[at + row] as i8);
    let unsigned = |at: usize| f32::from(bytes[at + row]);
    let four = |at: usize| bytes[at + row % 8] >> (row / 8 * 4) & 15;
    let values = values_of(spec);
    let raised = || codes.map(|code| values[usize::from(code)]);
    let (zero, mins) = (layout.zero(), [-0.0; 2]);
    let kind = match layout {
        Float8 => Values::E4m3,
        Lookup4 => Values::Table(float_table(spec.format())),
        _ => Values::Integers,
    };
    let lane = |codes, scales, mins| Lane { codes, zero, scales, mins, values: kind };
    match layout {
        Zero4 | Zero5 | Zero8 => lane(codes, [half(32 * b); 2], mins),
        HalfTable => lane(raised(), [half(32 * b); 2], mins),
        Ternary => lane(codes.map(|code| code + 7), [half(0); 2], mins),
        Min4 | Min5 => lane(codes, [half(0); 2], [half(32); 2]),
        Super4 | Super5 => {
            let scale = half(0) * unsigned(64 + 16 * b);
            lane(codes, [scale; 2], [-(half(32) * unsigned(192 + 16 * b)); 2])
        }
        Super2 => {
            let scale = |s: usize| half(0) * f32::from(four(64 + 32 * b + 8 * s));
            let min = |s: usize| -(half(32) * f32::from(four(80 + 32 * b + 8 * s)));
            lane(codes, [scale(0), scale(1)], [min(0), min(1)])
        }
        Super3 => {
            let low = bytes[32 + 24 * b + row];
            let sixes = [low & 63, low >> 6 | four(48 + 24 * b) << 2];
            let scales = sixes.map(|scale| half(0) * (f32::from(scale) - 32.0));
            lane(codes.map(|code| code + 124), scales, mins)
        }
        Super6 | SuperTable16 => {
            let scale = |s: usize| full(0) * signed(64 + 32 * b + 16 * s);
            lane(if layout == Super6 { codes } else { raised() }, [scale(0), scale(1)], mins)
        }
        Table4 => lane(raised(), [e8m0_to_f32_half(bytes[16 * b + row]); 2], mins),
        SuperTable => lane(raised(), [full(0) * signed(64 + 16 * b); 2], mins),
        Nvfp4 => {
            let scale = |s: usize| 0.5 * e4m3_to_f32(bytes[16 * s + row]);
            lane(raised(), [scale(0), scale(1)], mins)
        }
        FloatTable16 => lane(raised(), [full(0), full(64)], mins),
        layout if layout.is_flat() => lane(codes, [full(0); 2], [full(64); 2]),
        Float8 | Lookup4 => lane(codes, [full(0); 2], mins),
        _ => unreachable!("no layout of codes and scales"),
    }
}

/// Where a panel in pairs of columns has the number of a column and row.
pub const fn bf16_at(col: usize, row: usize) -> usize {
    (col / 2 * PANEL_ROWS + row) * 4 + (1 - col % 2) * 2
}

fn decode_float_row(layout: PanelLayout, panel: &[u8], row: usize, out: &mut [f32]) {
    for (col, out) in out.iter_mut().enumerate() {
        let half = |at: usize| u16::from_le_bytes([panel[at], panel[at + 1]]);
        *out = match layout {
            PanelLayout::Bf16 => bf16_to_f32(half(bf16_at(col, row))),
            PanelLayout::F16 => f16_to_f32(half((col * PANEL_ROWS + row) * 2)),
            _ => {
                let at = (col * PANEL_ROWS + row) * 4;
                f32::from_le_bytes([panel[at], panel[at + 1], panel[at + 2], panel[at + 3]])
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenmill_quant::FORMATS;

    /// Bytes from a multiplicative congruential sequence: every bit pattern is a legal block.
    fn noise(len: usize, mut state: u64) -> Vec<u8> {
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
            (state >> 56) as u8
        };
        (0..len).map(|_| next()).collect()
    }

    fn check(format: FormatId, rows: usize, cols: usize) {
        let spec = PanelSpec::new(format, rows, cols).expect("a legal shape");
        check_laid_out(spec);
        if spec.written_out() != spec {
            check_laid_out(spec.written_out());
        }
    }

    fn check_laid_out(spec: PanelSpec) {
        let (format, rows, cols) = (spec.format(), spec.rows(), spec.cols());
        let row_bytes = spec.stored_row_bytes();
        assert_eq!(format.row_bytes(cols as u64), Some(row_bytes as u64));
        assert_eq!(spec.panel_bytes() % 64, 0);
        let stored = noise(rows * row_bytes, (rows * cols) as u64);
        let mut data = vec![0xaa; spec.bytes()];
        spec.repack(0, &stored, &mut data);
        let (mut expect, mut got) = (vec![0.0; cols], vec![0.0; cols]);
        for (r, stored) in stored.chunks_exact(row_bytes).enumerate() {
            format.decode_row(stored, &mut expect);
            spec.row(&data, r, &mut got);
            if format == FormatId::BF16 {
                // Numbers that products do not tell from zero are zero.
                let least = bf16_to_f32(tokenmill_quant::float::BF16_LEAST);
                expect.iter_mut().filter(|e| e.abs() < least).for_each(|e| *e = 0.0);
            }
            for (c, (e, g)) in expect.iter().zip(&got).enumerate() {
                let same = e.to_bits() == g.to_bits() || e.is_nan() && g.is_nan();
                assert!(same, "{format} {rows}x{cols} row {r} column {c}: {e} is now {g}");
            }
        }
    }

    #[test]
    fn a_row_out_of_its_panel_is_the_stored_row() {
        for format in FORMATS.iter().filter(|f| f.id.is_weight()) {
            for rows in [1, 15, 16, 17, 40] {
                for blocks in [1, 2, 3, 5] {
                    check(format.id, rows, blocks * format.block_weights);
                }
            }
            check(format.id, 33, 2816);
        }
    }

    #[test]
    fn panels_of_files_types_take_no_more_than_the_file() {
        // Those that are still laid out wider, and how much at most.
        let wider = [(FormatId::TQ1_0, 1.23)];
        for format in FORMATS.iter().filter(|f| f.id.is_weight() && f.ggml_type.is_some()) {
            let spec = PanelSpec::new(format.id, 4096, 2048).expect("a legal shape");
            let most =
                wider.iter().find(|(id, _)| *id == format.id).map_or(1.03, |(_, most)| *most);
            let ratio = spec.bytes() as f64 / (4096 * spec.stored_row_bytes()) as f64;
            assert!(ratio <= most, "{}: {ratio:.3} of the file's bytes", format.name);
        }
    }

    #[test]
    fn a_row_out_of_its_band_is_the_stored_row() {
        use tokenmill_quant::exl3::{block_bytes, of_bits};
        let (rows, cols) = (256, 384);
        for bits in 1..=8 {
            let format = of_bits(bits);
            let spec = PanelSpec::new(format, rows, cols).expect("a legal shape");
            let mut stored = noise(rows * spec.stored_row_bytes(), 5);
            for header in stored.chunks_exact_mut(block_bytes(bits)) {
                header[1..512].iter_mut().step_by(2).for_each(|high| *high = 0x2c | *high & 0x83);
                header[512] = bits as u8 % 3;
            }
            // The columns of a band have one set of factors, which each of its blocks repeats.
            let per_band = stored.len() / 2;
            for b in 0..3 {
                let at = b * block_bytes(bits) + 256;
                for band in 0..2 {
                    let svh = stored[band * per_band + 256..][..256].to_vec();
                    stored[band * per_band + at..][..256].copy_from_slice(&svh);
                }
            }
            let mut expect = vec![0.0; rows * cols];
            format.decode_rows(cols, &stored, &mut expect);
            let mut data = vec![0xaa; spec.bytes()];
            spec.repack(0, &stored, &mut data);
            let mut got = vec![0.0; cols];
            for (r, expect) in expect.chunks(cols).enumerate().step_by(37) {
                spec.row(&data, r, &mut got);
                assert_eq!(got, expect, "row {r} of {format}");
            }
        }
    }

    #[test]
    fn panels_repacked_apart_are_the_same_bytes() {
        let spec = PanelSpec::new(FormatId::Q4_1, 40, 96).expect("a legal shape");
        let stored = noise(40 * spec.stored_row_bytes(), 7);
        let mut whole = vec![0; spec.bytes()];
        spec.repack(0, &stored, &mut whole);
        let mut parts = vec![1; spec.bytes()];
        let (first, rest) = parts.split_at_mut(spec.panel_bytes());
        let (head, tail) = stored.split_at(16 * spec.stored_row_bytes());
        spec.repack(1, tail, rest);
        spec.repack_panel(0, head, first);
        assert!(whole == parts);
    }

    #[test]
    fn shapes_that_cannot_be_laid_out_are_refused() {
        use crate::panel::PanelError;
        let cases = [
            (FormatId::Q4_K, 4, 96, PanelError::PartBlock { format: FormatId::Q4_K, cols: 96 }),
            (FormatId::I32, 4, 96, PanelError::NotWeights(FormatId::I32)),
            (
                FormatId::EXL3_4,
                64,
                256,
                PanelError::PartBand { format: FormatId::EXL3_4, rows: 64 },
            ),
            (FormatId::F32, 0, 96, PanelError::Size { rows: 0, cols: 96 }),
            (FormatId::F32, 4, 0, PanelError::Size { rows: 4, cols: 0 }),
            (FormatId::F32, usize::MAX, 8, PanelError::Size { rows: usize::MAX, cols: 8 }),
            (FormatId::F32, 8, usize::MAX, PanelError::Size { rows: 8, cols: usize::MAX }),
        ];
        for (format, rows, cols, expect) in cases {
            assert_eq!(PanelSpec::new(format, rows, cols), Err(expect));
        }
    }
}
