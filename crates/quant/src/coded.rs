//! Blocks of 256 columns that are indices into sixteen values: the IQ formats.

/// One block, taken apart: w = (unit·scale)·table\[code\], every product exact in f32.
pub(crate) struct Coded {
    /// Index of each column into the format's table.
    pub codes: [u8; 256],
    /// Scale of each 16 columns.
    pub scales: [i8; 16],
    /// What the scales are multiples of.
    pub unit: f32,
}

impl Coded {
    /// A block of zero codes.
    pub fn new(unit: f32) -> Coded {
        Coded { codes: [0; 256], scales: [0; 16], unit }
    }

    /// The weights of the block.
    pub fn decode(&self, table: &[i8; 16], out: &mut [f32; 256]) {
        let subs = out.as_chunks_mut::<16>().0.iter_mut().zip(self.codes.as_chunks::<16>().0);
        for ((out, codes), &scale) in subs.zip(&self.scales) {
            let scale = self.unit * f32::from(scale);
            for (out, &code) in out.iter_mut().zip(codes) {
                *out = scale * f32::from(table[usize::from(code)]);
            }
        }
    }

    /// Sets columns 8·`run` .. from an entry of a code book of eight 2-bit indices; bit c of
    /// `signs` negates column c.
    pub fn put_eight(&mut self, run: usize, entry: u16, signs: u8) {
        for (c, code) in self.codes[8 * run..8 * run + 8].iter_mut().enumerate() {
            *code = (entry >> (2 * c)) as u8 & 3 | (signs >> c & 1) << 3;
        }
    }

    /// Sets columns 4·`run` .. from an entry of a code book of four 3-bit indices; bit c of
    /// `signs` negates column c.
    pub fn put_four(&mut self, run: usize, entry: u16, signs: u8) {
        for (c, code) in self.codes[4 * run..4 * run + 4].iter_mut().enumerate() {
            *code = (entry >> (3 * c)) as u8 & 7 | (signs >> c & 1) << 3;
        }
    }
}

/// The eight signs behind a 7-bit index: the eighth makes their number even.
pub(crate) const fn even_signs(index: u32) -> u8 {
    let low = index & 127;
    (low | (low.count_ones() & 1) << 7) as u8
}

/// A table of magnitudes: codes 8.. are the negatives of codes 0.. .
pub(crate) const fn with_negatives(magnitudes: [i8; 8]) -> [i8; 16] {
    let mut table = [0; 16];
    let mut i = 0;
    while i < 8 {
        table[i] = magnitudes[i];
        table[i + 8] = -magnitudes[i];
        i += 1;
    }
    table
}

/// The four bytes at `at` as a little-endian word.
pub(crate) fn word_at(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

/// The two bytes at `at` as a little-endian number.
pub(crate) fn half_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}
