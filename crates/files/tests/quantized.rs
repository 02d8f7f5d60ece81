//! Every family of quantised safetensors: folders packed by the families' own packages
//! (`fixtures/quantized/generate.py`) give the values of their formulas, bit for bit.

use std::path::{Path, PathBuf};

use tokenmill_files::{OpenModel, open};
use tokenmill_ir::WeightSource;

const FAMILIES: [&str; 10] = [
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
];

fn folder(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/quantized").join(family)
}

/// All weights of a tensor, rows read in runs of `run`.
fn decoded(model: &OpenModel, name: &str, run: u64) -> Vec<f32> {
    let tensor = model.checkpoint.tensor(name).unwrap_or_else(|| panic!("no tensor {name}"));
    let row_bytes = tensor.format.row_bytes(tensor.cols()).unwrap();
    let mut all = Vec::new();
    for first in (0..tensor.rows()).step_by(run as usize) {
        let rows = first..(first + run).min(tensor.rows());
        let mut bytes = vec![0xaa; ((rows.end - rows.start) * row_bytes) as usize];
        model.read_rows(name, rows.clone(), &mut bytes).unwrap();
        let mut values = vec![0.0; ((rows.end - rows.start) * tensor.cols()) as usize];
        tensor.format.decode_rows(tensor.cols() as usize, &bytes, &mut values);
        if let Some(order) = &tensor.order {
            for stored in values.chunks_exact_mut(order.len()) {
                let mut row = vec![f32::NAN; order.len()];
                order.iter().zip(&*stored).for_each(|(&k, value)| row[k as usize] = *value);
                stored.copy_from_slice(&row);
            }
        }
        all.extend(values);
    }
    all
}

/// FNV-1a of the bits, zeros without their sign, as the generator has it.
fn fnv(values: &[f32]) -> String {
    let bytes = values.iter().flat_map(|v| (v + 0.0).to_le_bytes());
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[test]
fn every_family_decodes_to_its_formula() {
    for family in FAMILIES {
        let model = open(&folder(family)).unwrap_or_else(|e| panic!("{family}: {e}"));
        let json = std::fs::read(folder(family).join("expect.json")).unwrap();
        let expect: serde_json::Value = serde_json::from_slice(&json).unwrap();
        let expect = expect.as_object().unwrap();
        assert!(expect.len() >= 6, "{family}: too few modules");
        for (name, expect) in expect {
            let tensor = model.checkpoint.tensor(name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(tensor.format.name(), expect["format"], "{family} {name}");
            let runs: &[u64] = match family {
                // Rows of EXL3 come by 128.
                "exl3" => &[128],
                _ => &[1, 5, 16, 64],
            };
            for &run in runs {
                let values = decoded(&model, name, run);
                assert_eq!(fnv(&values), expect["hash"], "{family} {name} by {run} rows");
            }
        }
        // Nothing of the pieces is left over, and the rest is as it was.
        let left = |end: &str| model.checkpoint.tensors.iter().any(|t| t.name.ends_with(end));
        let ends = "scales scale qweight g_idx absmax SCB packed biases suh svh su sv mcg mul1";
        for end in ends.split(' ') {
            assert!(!left(end), "{family}: a tensor .{end} is left");
        }
        let shape = if family == "exl3" { [128, 128] } else { [40, 64] };
        assert_eq!(model.checkpoint.tensor("lm_head.weight").unwrap().shape, shape);
    }
}

#[test]
fn older_tools_describe_quantisation_beside_config_json() {
    for (family, file, inner) in [
        ("gptq_v1", "quantize_config.json", r#"{"bits": 4, "group_size": 32}"#),
        ("awq", "quant_config.json", r#"{"zero_point": true, "q_group_size": 32, "w_bit": 4}"#),
        (
            "modelopt",
            "hf_quant_config.json",
            r#"{"producer": {}, "quantization": {"quant_algo": "NVFP4"}}"#,
        ),
    ] {
        let scratch = tempfile::tempdir().unwrap();
        let weights = folder(family).join("model.safetensors");
        std::fs::copy(weights, scratch.path().join("model.safetensors")).unwrap();
        std::fs::write(scratch.path().join("config.json"), "{}").unwrap();
        std::fs::write(scratch.path().join(file), inner).unwrap();
        let name = "model.layers.0.mlp.down_proj.weight";
        let [found, expect] =
            [scratch.path().to_owned(), folder(family)].map(|f| open(&f).unwrap());
        assert!(decoded(&found, name, 8) == decoded(&expect, name, 8), "{file}");
    }
}

/// The first bytes of a file that are `from`, replaced, in a copy of a family's folder.
fn altered(family: &str, from: &[u8], to: &[u8]) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let mut bytes = std::fs::read(folder(family).join("model.safetensors")).unwrap();
    let at = bytes.windows(from.len()).position(|w| w == from).expect("it is there");
    bytes[at..at + to.len()].copy_from_slice(to);
    std::fs::write(copy.path().join("model.safetensors"), bytes).unwrap();
    let config = folder(family).join("config.json");
    std::fs::copy(config, copy.path().join("config.json")).unwrap();
    copy
}

#[test]
fn nf4_blocks_that_rows_cut_and_other_maps_are_read_as_f32() {
    let whole = open(&folder("bnb_4bit")).unwrap();
    let formats = |model: &OpenModel| {
        let of_64 = |t: &&tokenmill_ir::TensorInfo| t.format.name().ends_with("4_64");
        model.checkpoint.tensors.iter().filter(of_64).map(|t| t.name.clone()).collect::<Vec<_>>()
    };
    let nearly_one = 0.999_f32.to_le_bytes();
    for (from, to) in [
        (b"\"shape\": [64, 64]".as_slice(), b"\"shape\":[128, 32]".as_slice()),
        (&1.0_f32.to_le_bytes(), &nearly_one),
    ] {
        let copy = altered("bnb_4bit", from, to);
        let model = open(copy.path()).unwrap();
        let (all, left) = (formats(&whole), formats(&model));
        assert_eq!(left.len() + 1, all.len());
        let name = all.iter().find(|name| !left.contains(name)).unwrap();
        let (found, expect) = (decoded(&model, name, 4), decoded(&whole, name, 4));
        let differ = found.iter().zip(&expect).filter(|(f, e)| f != e).count();
        assert_eq!(differ > 0, to == nearly_one, "{name}: {differ} of {}", found.len());
    }
}

#[test]
fn scales_of_fp8_beyond_any_weight_are_refused() {
    let name = "model.layers.0.self_attn.q_proj.weight";
    let model = open(&folder("fp8")).unwrap();
    let tensor = model.checkpoint.tensor(name).unwrap();
    assert_eq!(tensor.format.name(), "e4m3_32");
    let mut block = vec![0; tensor.format.row_bytes(tensor.cols()).unwrap() as usize];
    model.read_rows(name, 0..1, &mut block).unwrap();
    let copy = altered("fp8", &block[..4], &300.0_f32.to_le_bytes());
    let error = open(copy.path()).unwrap().read_rows(name, 0..1, &mut block).unwrap_err();
    assert!(error.to_string().contains("has a scale of 300"), "{error}");
    let copy = altered("fp8", &block[4..12], &[0x7f; 8]);
    let error = open(copy.path()).unwrap().read_rows(name, 0..1, &mut block).unwrap_err();
    assert!(error.to_string().contains("holds a NaN"), "{error}");
}

#[test]
fn pieces_that_do_not_fit_are_refused() {
    use tokenmill_files::write::{TensorHeader, write_safetensors};
    use tokenmill_quant::FormatId::{self, F16, F32, I16, I32, U8};
    type Piece<'a> = (&'a str, FormatId, &'a [u64]);
    let gptq = r#"{"quant_method": "gptq", "bits": 4}"#;
    let awq = r#"{"quant_method": "awq", "bits": 4}"#;
    let bnb = r#"{"quant_method": "bitsandbytes"}"#;
    let exl3 = r#"{"quant_method": "exl3", "bits": 4}"#;
    let t: Piece = ("m.trellis", I16, &[8, 8, 64]);
    let q: &[Piece] = &[("m.qweight", I32, &[8, 32]), ("m.qzeros", I32, &[2, 4])];
    let with = |more: &[Piece<'static>]| [q, more].concat();
    for (config, pieces, expect) in [
        (gptq, with(&[]), "module 'm': expected a tensor .scales"),
        (gptq, with(&[("m.scales", F16, &[2, 31])]), ".scales [2, 32], found [2, 31]"),
        (gptq, with(&[("m.scales", U8, &[2, 32])]), ".scales: f16 or bf16 or f32 of two axes"),
        (gptq, with(&[("m.scales", F16, &[3, 32])]), ".qzeros [3, 4], found [2, 4]"),
        (
            gptq,
            with(&[("m.scales", F16, &[2, 32]), ("m.g_idx", I32, &[63])]),
            ".g_idx [64], found [63]",
        ),
        (
            gptq,
            vec![
                ("m.qweight", I32, &[8, 32]),
                ("m.qzeros", I32, &[2, 7]),
                ("m.scales", F16, &[2, 32]),
            ],
            "2, 3, 4 or 8 bits",
        ),
        (awq, with(&[("m.scales", F16, &[2, 32])]), ".qweight [8, 4], found [8, 32]"),
        (bnb, vec![("m.SCB", F32, &[4])], "a tensor .weight"),
        (exl3, vec![t, ("m.suh", F16, &[128])], "a tensor .sv"),
        (exl3, vec![t, ("m.suh", F16, &[128]), ("m.svh", F16, &[99])], ".svh [128], found [99]"),
        (
            exl3,
            vec![("m.trellis", I16, &[8, 8, 40])],
            "16·bits] of 1 to 8 bits, found i16 [8, 8, 40]",
        ),
        (exl3, vec![("m.trellis", I16, &[8, 9, 64])], "found i16 [8, 9, 64]"),
        (exl3, vec![t, ("m.mul1", I32, &[])], "code book 0x83dcd12d, found 0x0"),
        (
            r#"{"quant_method": "fp8"}"#,
            vec![("m.weight", U8, &[4, 4]), ("m.weight_scale", F32, &[1])],
            ".weight: f8_e4m3 or f8_e5m2, found u8",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let headers: Vec<TensorHeader> = pieces
            .iter()
            .map(|&(name, format, shape)| TensorHeader {
                name: name.to_owned(),
                format,
                shape: shape.to_vec(),
            })
            .collect();
        let mut file = std::fs::File::create(folder.path().join("model.safetensors")).unwrap();
        write_safetensors(&mut file, &headers, |header, out| {
            let count: u64 = header.shape.iter().product();
            out.write_all(&vec![0; count as usize * header.format.info().block_bytes])
        })
        .unwrap();
        let config = format!(r#"{{"quantization_config": {config}}}"#);
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        let error = open(folder.path()).unwrap_err().to_string();
        assert!(error.contains(expect), "{pieces:?}: {error}");
    }
}
