//! Latent attention whose up-projection is quantised in blocks, half of which is read transposed: what transformers computes
//! with the numbers of the family's formula, and the bits of the same model whose file holds these numbers.

use std::collections::BTreeMap;
use std::path::Path;

use tokenmill_backend::reference::ReferenceDevice;
use tokenmill_backend::{Device, stored};
use tokenmill_cpu::{CpuDevice, CpuOptions};
use tokenmill_engine::load::{Lowered, read};
use tokenmill_files::write::{TensorHeader, write_safetensors};
use tokenmill_golden_tests::{Golden, Runner, worst_difference};
use tokenmill_ir::{KvFormat, Mode, RowPart, RowSlices, WeightSpec, WeightUse};
use tokenmill_quant::FormatId;

/// Largest |Δlogit| allowed against transformers. Its own noise is about 1e-5.
const TOLERANCE: f32 = 1e-4;
/// Largest error of the int8 arithmetic, as a share of the spread of the logits; 0.013 was seen.
const ENCODED: f32 = 0.02;

/// Writes the model again as a file of f32, the quantised matrices decoded.
fn write_decoded(model: &Lowered, to: &Path) {
    let tensors = &model.files.checkpoint.tensors;
    let header = |t: &tokenmill_ir::TensorInfo| TensorHeader {
        name: t.name.clone(),
        format: FormatId::F32,
        shape: t.shape.clone(),
    };
    let headers: Vec<TensorHeader> = tensors.iter().map(header).collect();
    let mut out = std::fs::File::create(to.join("model.safetensors")).expect("a file");
    write_safetensors(&mut out, &headers, |header, out| {
        let t = model.files.checkpoint.tensor(&header.name).expect("of the model");
        let (rows, tensor) = (RowSlices::range(0, t.rows().max(1)), t.name.clone());
        let cols = t.shape.iter().product::<u64>() / t.rows().max(1);
        let order = t.order.clone();
        let whole = WeightSpec {
            name: t.name.clone(),
            role: WeightUse::Matmul,
            rows: rows.count as u32,
            cols: cols as u32,
            parts: vec![RowPart { format: t.format, tensor, rows, transposed: None, order }],
            bias: Vec::new(),
            scales: Vec::new(),
        };
        let numbers = stored::decode(&whole, &model.files).map_err(std::io::Error::other)?;
        out.write_all(&numbers.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())
    })
    .expect("written");
}

/// Logits of a prompt fed in chunks.
fn logits(device: &dyn Device, mode: Mode, model: &Lowered, ids: &[u32], chunk: usize) -> Vec<f32> {
    let context = ids.len() as u32 + 1;
    let mut run =
        Runner::new(device, mode, &model.program, &model.files, context).expect("compiled");
    run.prefill(ids, chunk).expect("ran")
}

fn bits(all: &[f32]) -> Vec<u32> {
    all.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn up_projections_in_blocks_are_their_numbers() {
    let options = CpuOptions { threads: 2, ..CpuOptions::default() };
    let cpu = CpuDevice::new(options).expect("a device");
    let (golden, families) = Golden::latents();
    let mut stored_as = BTreeMap::new();
    for family in families {
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let model = read(&golden.path_of(&family, scratch.path()), KvFormat::F32).expect("read");
        let up = |t: &&tokenmill_ir::TensorInfo| t.name.ends_with("kv_b_proj.weight");
        let up = model.files.checkpoint.tensors.iter().find(up).expect("an up-projection");
        stored_as.insert(family.clone(), (up.format.name(), up.order.is_some()));
        let plain = tempfile::tempdir().expect("a scratch folder");
        write_decoded(&model, plain.path());
        std::fs::write(plain.path().join("config.json"), golden.text("config.json").expect("it"))
            .expect("written");
        let decoded = read(plain.path(), KvFormat::F32).expect("read");
        let expected = golden.floats(&format!("{family}.f32"));
        let devices: [&dyn Device; 2] = [&ReferenceDevice::new(16), &cpu];
        for device in devices {
            for chunk in [512, 7] {
                let found = logits(device, Mode::F32, &model, &golden.ids, chunk);
                let (worst, _) = worst_difference(&found, &expected);
                println!("{family} on {} in {chunk}: {worst:.1e}", device.caps().name);
                assert!(worst <= TOLERANCE, "{family}: {worst}");
                let same = logits(device, Mode::F32, &decoded, &golden.ids, chunk);
                assert!(bits(&found) == bits(&same), "{family}: bits of the numbers it decodes to");
            }
        }
        let found = logits(&cpu, Mode::Int8, &model, &golden.ids, 512);
        let squares =
            |of: &dyn Fn(usize) -> f32| (0..found.len()).map(|i| of(i).powi(2)).sum::<f32>();
        let error = (squares(&|i| found[i] - expected[i]) / squares(&|i| expected[i])).sqrt();
        println!("{family}: {error:.4} of the logits in int8");
        assert!(error < ENCODED, "{family}: {error} of the logits");
    }
    // Each is stored as its family stores it, and one has its columns in another order.
    let expected = [
        ("awq", ("u4_32", false)),
        ("compressed_tensors", ("u4_32", false)),
        ("exl3", ("exl3_4", false)),
        ("fp8", ("e4m3_32", false)),
        ("gptq", ("u4_32", true)),
        ("mlx", ("u4_64", false)),
    ];
    assert_eq!(stored_as, expected.map(|(family, as_)| (family.to_owned(), as_)).into());
}
