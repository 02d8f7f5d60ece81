//! Quantised safetensors through a whole model on the CPU: what runs is what they decode to.

use std::ops::Range;
use std::path::{Path, PathBuf};

use tokenmill_cpu::{CpuDevice, CpuOptions};
use tokenmill_engine::load::read;
use tokenmill_files::OpenModel;
use tokenmill_golden_tests::Runner;
use tokenmill_ir::{KvFormat, Mode, Program, SourceError, WeightSource};
use tokenmill_quant::FormatId;

const TOKENS: u32 = 48;
/// Largest error of the int8 arithmetic, as a share of the spread of the logits; 0.022 was seen.
const ENCODED: f32 = 0.03;

/// The weights of a model, decoded.
struct Decoded<'a>(&'a OpenModel);

impl WeightSource for Decoded<'_> {
    fn read_rows(&self, tensor: &str, rows: Range<u64>, out: &mut [u8]) -> Result<(), SourceError> {
        let info = self.0.checkpoint.tensor(tensor).expect("a tensor of the model");
        let cols = if info.shape.len() == 1 { info.shape[0] } else { info.cols() };
        // Whole bands, of which the rows are taken.
        let band = info.format.band_rows() as u64;
        let around = rows.start / band * band..rows.end.next_multiple_of(band);
        let count = around.end - around.start;
        let mut stored =
            vec![0; (count * info.format.row_bytes(cols).expect("whole blocks")) as usize];
        self.0.read_rows(tensor, around.clone(), &mut stored)?;
        let mut values = vec![0.0; (count * cols) as usize];
        info.format.decode_rows(cols as usize, &stored, &mut values);
        let skip = (rows.start - around.start) * cols;
        let values = &values[skip as usize..][..((rows.end - rows.start) * cols) as usize];
        out.copy_from_slice(&values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>());
        Ok(())
    }

    fn rows(&self, _: &str, _: Range<u64>) -> Option<&[u8]> {
        None
    }
}

fn folder(family: &str) -> PathBuf {
    let folder = "../../crates/files/tests/fixtures/quantized";
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(family)
}

/// Logits of all tokens of a prompt fed in two chunks.
fn logits(program: &Program, source: &dyn WeightSource, mode: Mode) -> Vec<f32> {
    let options = CpuOptions { threads: 2, ..CpuOptions::default() };
    let device = CpuDevice::new(options).expect("a device");
    let mut runner = Runner::new(&device, mode, program, source, TOKENS).expect("compiled");
    let ids: Vec<u32> = (0..TOKENS).map(|i| (i * 7 + i * i) % 40).collect();
    runner.prefill(&ids, 31).expect("ran")
}

#[test]
fn every_family_runs_as_what_it_decodes_to() {
    for family in [
        "awq",
        "bnb_4bit",
        "bnb_int8",
        "compressed_tensors",
        "exl3",
        "fp8",
        "gptq_v1",
        "gptq_v2",
        "mlx",
        "modelopt",
    ] {
        let lowered = read(&folder(family), KvFormat::F32).expect("read");
        let mut decoded = lowered.program.clone();
        for part in decoded.weights.iter_mut().flat_map(|w| w.parts.iter_mut().chain(&mut w.bias)) {
            part.format = FormatId::F32;
        }
        let truth = logits(&decoded, &Decoded(&lowered.files), Mode::F32);
        let same = logits(&lowered.program, &lowered.files, Mode::F32);
        let bits = |all: &[f32]| all.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
        assert!(bits(&same) == bits(&truth), "{family}: f32 mode is the decoded weights");
        let found = logits(&lowered.program, &lowered.files, Mode::Int8);
        let squares =
            |of: &dyn Fn(usize) -> f32| (0..truth.len()).map(|i| of(i).powi(2)).sum::<f32>();
        let error = (squares(&|i| found[i] - truth[i]) / squares(&|i| truth[i])).sqrt();
        assert!(error < ENCODED, "{family}: {error} of the logits");
    }
}
