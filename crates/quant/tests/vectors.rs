//! Every format against vectors made with the gguf Python package (`fixtures/generate.py`).

use std::path::PathBuf;

use proptest::prelude::*;
use tokenmill_quant::{FORMATS, Format, FormatId};

/// One vector file, read front to back.
struct Vectors {
    bytes: Vec<u8>,
    at: usize,
}

impl Vectors {
    fn open(format: &Format) -> Vectors {
        let name = format!("tests/fixtures/{}.bin", format.name);
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name);
        let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        Vectors { bytes, at: 0 }
    }

    fn take(&mut self, len: usize) -> &[u8] {
        self.at += len;
        &self.bytes[self.at - len..self.at]
    }

    fn count(&mut self) -> usize {
        u32::from_le_bytes(self.take(4).try_into().unwrap()) as usize
    }

    fn floats(&mut self, len: usize) -> Vec<f32> {
        self.take(4 * len).chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }
}

/// Equal bit for bit; any NaN equals any NaN, since their payloads differ between processors.
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

#[test]
fn every_format_decodes_its_vectors_bit_exactly() {
    for format in FORMATS {
        let mut vectors = Vectors::open(format);
        let blocks = vectors.count();
        assert!(blocks >= 16, "{}: too few vectors", format.name);
        let bytes = vectors.take(blocks * format.block_bytes).to_vec();
        let expect = vectors.floats(blocks * format.block_weights);
        let mut got = vec![f32::NAN; expect.len()];
        format.id.decode_row(&bytes, &mut got);
        for (i, (&got, &expect)) in got.iter().zip(&expect).enumerate() {
            assert!(same(got, expect), "{} weight {i}: {got:e} is not {expect:e}", format.name);
        }
        // One block at a time gives the same as all at once.
        let band = format.id.band_rows();
        for (block, expect) in
            bytes.chunks(band * format.block_bytes).zip(expect.chunks(band * format.block_weights))
        {
            let mut got = vec![0.0; band * format.block_weights];
            format.id.decode_row(block, &mut got);
            assert!(got.iter().zip(expect).all(|(&a, &b)| same(a, b)), "{}", format.name);
        }
    }
}

#[test]
fn every_encoder_gives_the_oracles_bytes() {
    for format in FORMATS {
        let mut vectors = Vectors::open(format);
        let blocks = vectors.count();
        vectors.take(blocks * (format.block_bytes + 4 * format.block_weights));
        let count = vectors.count();
        assert_eq!(count > 0, format.encode.is_some(), "{}: vectors where offered", format.name);
        let plain = vectors.floats(count * format.block_weights);
        let expect = vectors.take(count * format.block_bytes).to_vec();
        assert_eq!(vectors.at, vectors.bytes.len(), "{}: trailing bytes", format.name);
        let Some(encode) = format.encode else { continue };
        let mut got = vec![0; expect.len()];
        encode(&plain, &mut got);
        for (i, (got, expect)) in
            got.chunks(format.block_bytes).zip(expect.chunks(format.block_bytes)).enumerate()
        {
            assert_eq!(got, expect, "{} block {i}", format.name);
        }
    }
}

#[test]
#[should_panic(expected = "block count")]
fn a_row_of_the_wrong_length_is_a_bug() {
    (FORMATS[3].decode)(&[0; 18], &mut [0.0; 31]);
}

/// What encoding a block may change a number by: half a step, and the rounding of its scale (or its
/// least number) to f16, which every code of it multiplies.
fn largest_error(format: FormatId, block: &[f32]) -> f32 {
    let (min, max) = block.iter().fold((0f32, 0f32), |(a, b), &w| (a.min(w), b.max(w)));
    let (min_all, max_all) =
        block.iter().fold((f32::MAX, f32::MIN), |(a, b), &w| (a.min(w), b.max(w)));
    let largest = max.max(-min);
    let f16 = largest * 2f32.powi(-11) + 2f32.powi(-24);
    match format {
        FormatId::F32 => 0.0,
        FormatId::F16 => f16,
        FormatId::BF16 => largest * 2f32.powi(-8),
        FormatId::Q8_0 => largest / 127.0 * 0.5 + f16,
        // The code that the largest number does not have is a step away from its opposite.
        FormatId::Q4_0 => largest / 8.0 + f16,
        FormatId::Q5_0 => largest / 16.0 + f16,
        FormatId::Q4_1 => (max_all - min_all) / 15.0 * 0.5 + 3.0 * f16,
        FormatId::Q5_1 => (max_all - min_all) / 31.0 * 0.5 + 3.0 * f16,
        other => panic!("a bound for {other}"),
    }
}

proptest! {
    /// A block decoded from bytes that an encoder made is as close to what was encoded as its steps.
    #[test]
    fn encoding_loses_at_most_half_a_step(
        weights in proptest::collection::vec(-4.0_f32..4.0, 64),
        scale in -8..8i32,
    ) {
        let weights: Vec<f32> = weights.iter().map(|w| w * 2f32.powi(scale)).collect();
        for format in FORMATS.iter().filter(|f| f.encode.is_some()) {
            let mut bytes = vec![0; 64 / format.block_weights * format.block_bytes];
            format.encode.expect("one of those with an encoder")(&weights, &mut bytes);
            let mut back = vec![0.0; 64];
            format.id.decode_row(&bytes, &mut back);
            let size = format.block_weights;
            for (was, is) in weights.chunks(size).zip(back.chunks(size)) {
                let most = largest_error(format.id, was);
                for (w, b) in was.iter().zip(is) {
                    prop_assert!((w - b).abs() <= most, "{}: {w} became {b}", format.name);
                }
            }
        }
    }

    /// Any bytes decode without a panic, and decoding is a function of the bytes alone.
    #[test]
    fn any_bytes_decode(
        seed in proptest::collection::vec(any::<u8>(), 256),
        row in 0..FORMATS.len(),
    ) {
        let format = &FORMATS[row];
        let blocks = 3 * format.id.band_rows();
        let bytes = seed.iter().cycle().take(blocks * format.block_bytes);
        let bytes: Vec<u8> = bytes.copied().collect();
        let weights = blocks * format.block_weights;
        let (mut a, mut b) = (vec![0.0; weights], vec![1.0; weights]);
        format.id.decode_row(&bytes, &mut a);
        format.id.decode_row(&bytes, &mut b);
        prop_assert!(a.iter().zip(&b).all(|(&a, &b)| same(a, b)));
    }
}
