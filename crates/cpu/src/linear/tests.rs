//! Every format × shape × token count × instruction set against the definition and f64.

use crate::panel::PanelSpec;
use tokenmill_quant::exl3::{Codebook, WIDTH};
use tokenmill_quant::float::{f32_to_bf16, f32_to_f16};
use tokenmill_quant::{FORMATS, FormatId};

use super::*;

/// A multiplicative congruential sequence.
struct Noise(u64);

impl Noise {
    fn byte(&mut self) -> u8 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_041);
        (self.0 >> 56) as u8
    }

    /// About −1..1.
    fn unit(&mut self) -> f32 {
        let bits = u32::from(self.byte()) << 16 | u32::from(self.byte()) << 8;
        (bits | u32::from(self.byte())) as f32 / 8_388_608.0 - 1.0
    }
}

/// Formats that begin with f32s.
const FLOATS: [FormatId; 16] = [
    FormatId::U2_32,
    FormatId::U2_64,
    FormatId::U2_128,
    FormatId::U3_32,
    FormatId::U3_64,
    FormatId::U3_128,
    FormatId::U4_32,
    FormatId::U4_64,
    FormatId::U4_128,
    FormatId::U8_32,
    FormatId::U8_64,
    FormatId::U8_128,
    FormatId::FP4_F32,
    FormatId::E4M3_32,
    FormatId::NF4_64,
    FormatId::FP4_64,
];

/// Stored rows of `format` in which every code appears and scales are moderate.
fn stored(format: FormatId, rows: usize, cols: usize, noise: &mut Noise) -> Vec<u8> {
    let info = format.info();
    let mut bytes = vec![0; rows * cols / info.block_weights * info.block_bytes];
    for block in bytes.chunks_exact_mut(info.block_bytes) {
        block.fill_with(|| noise.byte());
        let mut put = |at: usize, bits: u16| block[at..at + 2].copy_from_slice(&bits.to_le_bytes());
        match format {
            FormatId::F32 => block.copy_from_slice(&noise.unit().to_le_bytes()),
            FormatId::F16 => put(0, f32_to_f16(noise.unit())),
            FormatId::BF16 => put(0, f32_to_bf16(noise.unit())),
            FormatId::MXFP4 => block[0] = 118 + block[0] % 8,
            FormatId::Q2_K => {
                put(80, f32_to_f16(noise.unit() * 0.01));
                put(82, f32_to_f16(noise.unit() * 0.05));
            }
            FormatId::Q3_K => put(108, f32_to_f16(noise.unit() * 0.01)),
            FormatId::TQ1_0 => put(52, f32_to_f16(noise.unit() * 0.01)),
            FormatId::TQ2_0 => put(64, f32_to_f16(noise.unit() * 0.01)),
            // The scale is spread over the top nibbles of four numbers.
            FormatId::IQ1_M => {
                let d = f32_to_f16(noise.unit() * 0.01);
                (0..4).for_each(|i| {
                    let nibble = (d >> (4 * i) & 15) as u8;
                    block[49 + 2 * i] = block[49 + 2 * i] & 15 | nibble << 4;
                });
            }
            FormatId::NVFP4 => block[..4].iter_mut().for_each(|s| *s &= 0x3f),
            format if FLOATS.contains(&format) => {
                use FormatId::{E4M3_32, FP4_64, NF4_64};
                let floats = if matches!(format, E4M3_32 | NF4_64 | FP4_64) { 1 } else { 2 };
                for at in 0..floats {
                    block[4 * at..][..4].copy_from_slice(&(noise.unit() * 0.01).to_le_bytes());
                }
            }
            FormatId::Q6_K => put(208, f32_to_f16(noise.unit() * 0.01)),
            FormatId::Q4_1 | FormatId::Q5_1 | FormatId::Q4_K | FormatId::Q5_K => {
                put(0, f32_to_f16(noise.unit() * 0.01));
                put(2, f32_to_f16(noise.unit() * 0.05));
            }
            _ => put(0, f32_to_f16(noise.unit() * 0.01)),
        }
    }
    bytes
}

/// Rows of `cols` numbers, encoded.
fn encoded(isa: Isa, encoding: Encoding, cols: usize, x: &[f32]) -> Vec<Line> {
    let lines = encoding.lines(cols);
    let mut out = vec![Line::ZERO; x.len() / cols * lines];
    for (x, row) in x.chunks_exact(cols).zip(out.chunks_exact_mut(lines)) {
        encoding.encode(isa, x, row);
    }
    out
}

/// A weight in panels and the activations of some tokens.
struct Case {
    spec: PanelSpec,
    weights: Vec<u8>,
    encoding: Encoding,
    input: Vec<Line>,
    x: Vec<f32>,
    tokens: usize,
}

impl Case {
    fn new(format: FormatId, encoding: Encoding, rows: usize, cols: usize, tokens: usize) -> Case {
        Case::of(PanelSpec::new(format, rows, cols).expect("a legal shape"), encoding, tokens)
    }

    fn of(spec: PanelSpec, encoding: Encoding, tokens: usize) -> Case {
        let (format, rows, cols) = (spec.format(), spec.rows(), spec.cols());
        let mut noise = Noise((rows * 31 + cols * 7 + tokens) as u64);
        let mut weights = vec![0; spec.bytes()];
        spec.repack(0, &stored(format, rows, cols, &mut noise), &mut weights);
        let mut x = Vec::new();
        for token in 0..tokens {
            let size = 1.0 + noise.unit().abs() * 20.0;
            // Now and then one far above the rest, so that some blocks are outliers; one column in all tokens, but for every
            // third, which has none.
            let mut value = |k: usize| {
                let x = noise.unit().powi(3) * size;
                match (k, noise.byte()) {
                    _ if token % 3 == 2 => x,
                    (5, _) => 9.0 * size,
                    (_, 0) => x * 30.0,
                    _ => x,
                }
            };
            x.extend((0..cols).map(&mut value));
        }
        let input = encoded(Isa::Scalar, encoding, cols, &x);
        Case { spec, weights, encoding, input, x, tokens }
    }

    /// Results of all panels, computed in two runs that split the panels at `split`; columns
    /// beyond the matrix keep the mark they had.
    fn run(&self, isa: Isa, split: usize) -> Vec<f32> {
        let stride = self.spec.rows() + 3;
        let mut out = vec![7.5; self.tokens * stride];
        let mut scratch = vec![Line::ZERO; scratch_lines(&self.spec)];
        let view = OutView::new(&mut out, stride);
        // How a row in bf16 looks is the instruction set's.
        let input = match self.encoding {
            Encoding::Bf16 => encoded(isa, self.encoding, self.spec.cols(), &self.x),
            _ => self.input.clone(),
        };
        // Whatever is prefetched changes nothing, nor does nothing.
        let mut prefetch = Prefetch::default();
        if split > 0 {
            prefetch.set([self.weights.as_ptr_range()]);
        }
        for panels in [0..split, split..self.spec.panels()] {
            let job = LinearJob {
                spec: self.spec,
                weights: &self.weights,
                panels,
                encoding: self.encoding,
                input: &input,
                tokens: self.tokens,
                out: view,
                prefetch: Some(&prefetch),
            };
            // SAFETY: one call at a time.
            unsafe { linear(isa, &job, &mut scratch) };
        }
        for row in out.chunks_exact(stride) {
            assert!(row[self.spec.rows()..].iter().all(|&y| y == 7.5), "wrote beyond the row");
        }
        out.chunks_exact(stride).flat_map(|row| row[..self.spec.rows()].to_vec()).collect()
    }
}

fn check_isas(format: FormatId, encoding: Encoding, rows: usize, cols: usize, tokens: usize) {
    let case = Case::new(format, encoding, rows, cols, tokens);
    let expect = case.run(Isa::Scalar, 0);
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for split in [0, case.spec.panels() / 2] {
            for (i, (e, g)) in expect.iter().zip(case.run(isa, split)).enumerate() {
                assert!(
                    e.to_bits() == g.to_bits(),
                    "{format} {encoding:?} {rows}×{cols}, {tokens} tokens, {}: [{}][{}] {e} is {g}",
                    isa.name(),
                    i / rows,
                    i % rows
                );
            }
        }
    }
}

/// The encodings that inputs of a format may have.
fn encodings(format: FormatId) -> Vec<Encoding> {
    let layout = PanelSpec::new(format, 1, 256).expect("a legal shape").layout();
    let mut all = [Mode::Int8, Mode::Bf16, Mode::F32].map(|m| Encoding::of(layout, m)).to_vec();
    if all[0].is_bytes() {
        all.extend([Encoding::Int8, Encoding::Int8Coarse]);
    }
    all.sort();
    all.dedup();
    all
}

fn weight_formats() -> impl Iterator<Item = FormatId> {
    FORMATS.iter().map(|f| f.id).filter(|id| id.is_weight())
}

#[test]
fn every_instruction_set_gives_the_bits_of_the_definition() {
    for format in weight_formats() {
        let unit = format.info().block_weights.max(32);
        for encoding in encodings(format) {
            for tokens in [1, 2, 3, 5, 6, 7, 8, 13, 64, 100] {
                check_isas(format, encoding, 50, unit * 3, tokens);
            }
            for (rows, cols) in [(1, unit), (16, unit * 2), (33, unit * 5), (100, unit)] {
                check_isas(format, encoding, rows, cols, 4);
                check_isas(format, encoding, rows, cols, 25);
            }
        }
    }
}

#[test]
fn code_books_that_are_written_out_give_the_same_bits() {
    let plain = |format| PanelSpec::new(format, 50, 768).expect("a legal shape");
    for spec in weight_formats().map(plain).filter(|spec| spec.written_out() != *spec) {
        for encoding in encodings(spec.format()) {
            for tokens in [1, 2, 3, 4, 5, 8, 25, 64] {
                let expect = Case::of(spec, encoding, tokens).run(Isa::Scalar, 0);
                let case = Case::of(spec.written_out(), encoding, tokens);
                for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                    let same = case.run(isa, 1) == expect;
                    assert!(same, "{} {encoding:?}, {tokens}, {}", spec.format(), isa.name());
                }
            }
        }
    }
}

#[test]
fn rows_and_tokens_beyond_what_is_held_in_a_cache() {
    // More blocks than an expanded run and than a word of outlier bits, more tokens than stay in L2.
    for format in [FormatId::Q4_0, FormatId::Q8_0, FormatId::Q4_K, FormatId::Q6_K] {
        check_isas(format, Encoding::Int8, 33, 2048, 520);
        check_isas(format, Encoding::Int8Coarse, 33, 2048, 8);
    }
    // More panels than go over a run together.
    check_isas(FormatId::Q4_K, Encoding::Int8Coarse, 290, 1024, 80);
    check_isas(FormatId::BF16, Encoding::F32, 81, 300, 300);
    check_isas(FormatId::BF16, Encoding::Bf16, 81, 300, 300);
    check_isas(FormatId::BF16, Encoding::Bf16, 81, 2115, 20);
    check_isas(FormatId::Q4_K, Encoding::Bf16, 65, 512, 260);
    // More columns than a chunk of floats, and an odd number of them.
    for format in [FormatId::F32, FormatId::F16, FormatId::BF16] {
        check_isas(format, Encoding::F32, 37, 2115, 71);
    }
    check_isas(FormatId::BF16, Encoding::Bf16, 18, 2115, 65);
    check_isas(FormatId::Q4_K, Encoding::F32, 33, 1280, 66);
}

#[test]
fn products_of_bf16_are_the_same_where_sums_would_be_subnormal() {
    // Magnitudes from subnormal ones to 2⁻⁴⁰: without a least factor, products and what they leave of each other
    // would be subnormal, which some instructions flush to zero.
    let mut noise = Noise(5);
    let mut number = |least: u32, most: u32| {
        let exponent = least + u32::from(noise.byte()) % (most - least);
        let sign = u32::from(noise.byte() & 1) << 31;
        f32::from_bits(sign | exponent << 23 | u32::from(noise.byte()) << 15)
    };
    for (least, most) in [(0, 3), (62, 66), (66, 74), (60, 80)] {
        let mut case = Case::new(FormatId::BF16, Encoding::Bf16, 20, 64, 9);
        let stored: Vec<u8> =
            (0..20 * 64).flat_map(|_| f32_to_bf16(number(least, most)).to_le_bytes()).collect();
        case.spec.repack(0, &stored, &mut case.weights);
        case.x.iter_mut().for_each(|x| *x = number(least, most));
        let expect = case.run(Isa::Scalar, 0);
        assert_eq!(expect.iter().all(|&y| y == 0.0), most <= 66, "none counts, or some do");
        assert!(expect.iter().all(|y| *y == 0.0 || y.is_normal()));
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            assert_eq!(case.run(isa, 0), expect, "{} from 2^{}", isa.name(), least as i32 - 127);
        }
    }
}

#[test]
fn odd_columns_of_plain_formats() {
    for format in [FormatId::F32, FormatId::F16, FormatId::BF16] {
        for cols in [1, 7, 31, 33, 130, 257] {
            for encoding in encodings(format) {
                check_isas(format, encoding, 18, cols, 3);
            }
        }
    }
}

#[test]
fn results_do_not_depend_on_the_other_tokens() {
    let whole = Case::new(FormatId::Q4_1, Encoding::Int8, 40, 576, 64);
    let expect = whole.run(Isa::detect(), 0);
    let lines = whole.encoding.lines(576);
    for t in [0, 13, 63] {
        let mut one = Case::new(FormatId::Q4_1, Encoding::Int8, 40, 576, 64);
        one.input = whole.input[t * lines..][..lines].to_vec();
        one.tokens = 1;
        assert_eq!(one.run(Isa::detect(), 1), expect[t * 40..][..40], "token {t}");
    }
}

/// The numbers that a row of 512 columns in bytes stands for.
fn decoded(row: &[Line]) -> Vec<f32> {
    let word = |line: &Line, i: usize| f64::from(f32::from_bits(line.0[i]));
    let number = |b: usize, k: usize| {
        let lines = [&row[b], &row[encode::residual_lines(16) + b]];
        let codes = lines.map(|line| f64::from(line.0[k / 4].to_le_bytes()[k % 4] as i8));
        let [first, second] = lines.map(|line| word(line, encode::SCALE));
        (first * codes[0] + second * codes[1]) as f32
    };
    (0..512).map(|i| number(i / 32, i % 32)).collect()
}

/// The exact product in f64, and Σ|w·x| for bounds.
fn oracle(case: &Case) -> Vec<(f64, f64)> {
    let cols = case.spec.cols();
    let mut w = vec![0.0; cols];
    let mut out = vec![(0.0, 0.0); case.tokens * case.spec.rows()];
    for r in 0..case.spec.rows() {
        case.spec.row(&case.weights, r, &mut w);
        for (t, x) in case.x.chunks_exact(cols).enumerate() {
            let sum = &mut out[t * case.spec.rows() + r];
            for (&w, &x) in w.iter().zip(x) {
                let p = f64::from(w) * f64::from(x);
                *sum = (sum.0 + p, sum.1 + p.abs());
            }
        }
    }
    out
}

#[test]
fn the_definition_is_near_the_exact_product() {
    // Relative to Σ|w·x|: f32 rounds n times; bf16 loses 2⁻⁹ on each side. What int8 loses on activations is a
    // matter of their encoding: here x is what its bytes say, second ones where there are any.
    for format in weight_formats() {
        for encoding in encodings(format) {
            let mut case = Case::new(format, encoding, 20, 512, 3);
            if encoding.is_bytes() {
                case.x = case.input.chunks_exact(encoding.lines(512)).flat_map(decoded).collect();
            }
            let got = case.run(Isa::Scalar, 0);
            for ((exact, size), got) in oracle(&case).into_iter().zip(got) {
                let bound = match encoding {
                    Encoding::F32 | Encoding::Int8 | Encoding::Int8Coarse => 1e-5,
                    Encoding::Bf16 => 4.1e-3,
                    Encoding::Transformed => unreachable!("of bands"),
                };
                let error = (exact - f64::from(got)).abs() / size;
                assert!(
                    error < bound,
                    "{format} {encoding:?}: {got} for {exact}, error {error:.2e}"
                );
            }
        }
    }
}

#[test]
fn outlier_blocks_are_encoded_twice_and_no_others() {
    // 64 columns of noise and one spike: without second bytes the noise beside the spike
    // would be lost in steps of 300/127.
    let mut case = Case::new(FormatId::F32, Encoding::F32, 16, 512, 1);
    let mut x: Vec<f32> = (0..512).map(|k| (k as f32 * 0.37).sin()).collect();
    x[100] = 300.0;
    let lines = Encoding::Int8.lines(512);
    let mut line = vec![Line::ZERO; lines];
    Encoding::Int8.encode(Isa::detect(), &x, &mut line);
    assert_eq!(line[16].0, std::array::from_fn(|i| if i == 0 { 1 << 3 } else { 0 }));
    case.x.clone_from(&x);
    let spec = PanelSpec::new(FormatId::Q8_0, 16, 512).expect("a legal shape");
    let mut weights = vec![0; spec.bytes()];
    spec.repack(0, &stored(FormatId::Q8_0, 16, 512, &mut Noise(3)), &mut weights);
    let mut twice = Case { spec, weights, encoding: Encoding::Int8, input: line, ..case };
    let with = twice.run(Isa::detect(), 0);
    let exact = oracle(&twice);
    twice.input[16] = Line::ZERO; // as if it were no outlier
    let without = twice.run(Isa::detect(), 0);
    let error = |got: &[f32]| -> f64 {
        got.iter().zip(&exact).map(|(got, (y, ..))| (f64::from(*got) - y).powi(2)).sum()
    };
    assert!(error(&with) * 20.0 < error(&without), "{} {}", error(&with), error(&without));
}

#[test]
fn activations_that_cannot_be_encoded_show() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 2e30] {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let mut case = Case::new(FormatId::Q4_0, Encoding::Int8, 16, 64, 2);
            let mut x = case.x[..64].to_vec();
            x[40] = bad;
            let lines = case.encoding.lines(64);
            case.encoding.encode(isa, &x, &mut case.input[..lines]);
            let got = case.run(isa, 0);
            assert!(got[..16].iter().all(|y| y.is_nan()), "{bad}: {:?}", &got[..16]);
            assert!(got[16..].iter().all(|y| y.is_finite()), "the other token is untouched");
        }
    }
}

/// Bands of EXL3 with random tiles and moderate factors.
fn bands(bits: usize, codebook: Codebook, rows: usize, cols: usize) -> Case {
    use tokenmill_quant::exl3::{FACTOR_BYTES, block_bytes, of_bits};
    let mut noise = Noise(rows as u64 * 7 + cols as u64);
    let spec = PanelSpec::new(of_bits(bits), rows, cols).expect("a legal shape");
    let mut stored: Vec<u8> = (0..rows * spec.stored_row_bytes()).map(|_| noise.byte()).collect();
    let mut factor = || f32_to_f16((0.1 + noise.unit().abs()) * noise.unit().signum());
    let (suh, svh): (Vec<u16>, Vec<u16>) =
        ((0..cols).map(|_| factor()).collect(), (0..rows).map(|_| factor()).collect());
    for (i, block) in stored.chunks_exact_mut(block_bytes(bits)).enumerate() {
        block[FACTOR_BYTES] = codebook as u8;
        let (band, k) = (i / (cols / WIDTH), i % (cols / WIDTH));
        let factors = suh[k * WIDTH..][..WIDTH].iter().chain(&svh[band * WIDTH..][..WIDTH]);
        let bytes = factors.flat_map(|f| f.to_le_bytes());
        block[..FACTOR_BYTES].iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte);
    }
    let mut weights = vec![0; spec.bytes()];
    spec.repack(0, &stored, &mut weights);
    let (encoding, input, x) = (Encoding::Transformed, Vec::new(), Vec::new());
    Case { spec, weights, encoding, input, x, tokens: 0 }
}

const BOOKS: [Codebook; 3] = [Codebook::ThreeInst, Codebook::Mcg, Codebook::Mul1];

impl Case {
    /// The same weight on tokens of another case.
    fn with(mut self, tokens: usize) -> Case {
        let cols = self.spec.cols();
        let other = Case::new(FormatId::F32, Encoding::F32, 16, cols, tokens);
        (self.input, self.x, self.tokens) = (other.input, other.x, tokens);
        self
    }
}

#[test]
fn turned_products_are_the_definition_however_they_are_shared_out() {
    let shapes = [(128, 128, 1), (256, 384, 7), (128, 1152, 3), (384, 256, 45)];
    let kinds = (1..=8).flat_map(|bits| BOOKS.map(|book| (bits, book)));
    for (i, (bits, book)) in kinds.enumerate() {
        // All shapes of 4 bits with mul1, of the others one each.
        let all = (bits, book) == (4, Codebook::Mul1);
        let some = if all { &shapes[..] } else { &shapes[i % 4..=i % 4] };
        for &(rows, cols, tokens) in some {
            let case = bands(bits, book, rows, cols).with(tokens);
            let expect = case.run(Isa::Scalar, 0);
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                for split in [0, 8, 11] {
                    let got = case.run(isa, split.min(case.spec.panels()));
                    let same = expect.iter().zip(&got).all(|(e, g)| e.to_bits() == g.to_bits());
                    let what = format!("{bits} bits, {book:?}, {rows} × {cols}, {tokens} tokens");
                    assert!(same, "{what}, {} at {split}", isa.name());
                }
            }
        }
    }
}

#[test]
fn turned_products_are_near_the_exact_ones() {
    // Any tokens, and such with one number in each transform: transformed, all have one magnitude, which bytes hold as it is.
    for (bits, book) in BOOKS.into_iter().enumerate().map(|(i, book)| (2 + 2 * i, book)) {
        let any = bands(bits, book, 128, 512).with(4);
        let mut one = bands(bits, book, 128, 512).with(4);
        for (i, x) in one.x.iter_mut().enumerate() {
            *x *= f32::from(i % WIDTH == i / WIDTH * 37 % WIDTH);
        }
        one.input = encoded(Isa::Scalar, Encoding::Transformed, 512, &one.x);
        for (case, bound) in [(any, 0.012), (one, 1e-5)] {
            let (mut wrong, mut all) = (0.0, 0.0);
            for ((exact, ..), got) in oracle(&case).into_iter().zip(case.run(Isa::detect(), 0)) {
                wrong += (exact - f64::from(got)).powi(2);
                all += exact * exact;
            }
            let error = (wrong / all).sqrt();
            assert!(error < bound, "{bits} bits, {book:?}: error {error:.2e}, bound {bound:.0e}");
        }
    }
}
