//! Files made by the gguf and safetensors Python packages (`fixtures/generate.py`), opened.

use std::path::{Path, PathBuf};

use tokenmill_files::{LoadError, OpenModel, expert_rows, open};
use tokenmill_ir::{Container, MetaValue, WeightSource};
use tokenmill_quant::FormatId;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// What the generator puts at element `i` of every tensor.
fn value(i: usize) -> f32 {
    ((i * 7 + 3) % 251) as f32 - 125.0
}

/// A whole tensor, read by rows and decoded; both ways of reading rows must agree.
fn decoded(model: &OpenModel, name: &str) -> Vec<f32> {
    let tensor = model.checkpoint.tensor(name).unwrap_or_else(|| panic!("{name}"));
    let row_bytes = tensor.format.row_bytes(tensor.cols()).unwrap() as usize;
    let mut all = vec![0; row_bytes * tensor.rows() as usize];
    model.read_rows(name, 0..tensor.rows(), &mut all).unwrap();
    for row in 0..tensor.rows() {
        let expect = &all[row as usize * row_bytes..][..row_bytes];
        let mut one = vec![0; row_bytes];
        model.read_rows(name, row..row + 1, &mut one).unwrap();
        assert_eq!(one, expect, "{name} row {row}");
        if let Some(mapped) = model.rows(name, row..row + 1) {
            assert_eq!(mapped, expect, "{name} row {row}");
        }
    }
    let mut out = vec![0.0; (tensor.rows() * tensor.cols()) as usize];
    tensor.format.decode_row(&all, &mut out);
    out
}

#[test]
fn every_gguf_value_type_is_read() {
    let model = open(&fixture("tiny.gguf")).unwrap();
    assert_eq!(model.checkpoint.container, Container::Gguf);
    let meta = &model.checkpoint.meta;
    let list =
        |values: &[i64]| MetaValue::List(values.iter().map(|&i| MetaValue::Int(i)).collect());
    for (key, expect) in [
        ("general.architecture", MetaValue::Str("llama".into())),
        ("test.u8", MetaValue::Int(200)),
        ("test.i8", MetaValue::Int(-100)),
        ("test.u16", MetaValue::Int(60000)),
        ("test.i16", MetaValue::Int(-30000)),
        ("test.u32", MetaValue::Int(4_000_000_000)),
        ("test.i32", MetaValue::Int(-2_000_000_000)),
        ("test.u64", MetaValue::Uint(u64::MAX)),
        ("test.i64", MetaValue::Int(i64::MIN)),
        ("test.f32", MetaValue::Float(f64::from(0.1_f32))),
        ("test.f64", MetaValue::Float(0.1)),
        ("test.true", MetaValue::Bool(true)),
        ("test.false", MetaValue::Bool(false)),
        ("test.text", MetaValue::Str("grüße 😀".into())),
        ("test.empty", MetaValue::Str(String::new())),
        ("test.ints", list(&[-1, 0, 7])),
        ("test.floats", MetaValue::List(vec![MetaValue::Float(0.5), MetaValue::Float(-2.25)])),
        (
            "test.strings",
            MetaValue::List(["a", "", "ccc"].map(|s| MetaValue::Str(s.into())).into()),
        ),
        ("test.nested", MetaValue::List(vec![list(&[1, 2]), list(&[3])])),
    ] {
        assert_eq!(meta.get(key), Some(&expect), "{key}");
    }
}

#[test]
fn gguf_tensors_have_their_shapes_and_bytes() {
    let model = open(&fixture("tiny.gguf")).unwrap();
    for (name, format, shape) in [
        ("token_embd.weight", FormatId::Q8_0, &[5, 64][..]),
        ("blk.0.ffn_gate_exps.weight", FormatId::Q4_0, &[3, 2, 32]),
        ("blk.0.attn_norm.weight", FormatId::F32, &[7]),
        ("output.weight", FormatId::F16, &[3, 6]),
    ] {
        let tensor = model.checkpoint.tensor(name).unwrap();
        assert_eq!((tensor.format, tensor.shape.as_slice()), (format, shape), "{name}");
        let plain: Vec<f32> = (0..shape.iter().product::<u64>() as usize).map(value).collect();
        let mut expect = vec![0; tensor.extent.len as usize];
        (format.info().encode.unwrap())(&plain, &mut expect);
        assert_eq!(model.data.tensor_bytes(tensor).unwrap(), expect, "{name}");
    }
    assert_eq!(decoded(&model, "output.weight"), (0..18).map(value).collect::<Vec<_>>());
}

#[test]
fn one_expert_is_a_range_of_rows() {
    let model = open(&fixture("tiny.gguf")).unwrap();
    let name = "blk.0.ffn_gate_exps.weight";
    let tensor = model.checkpoint.tensor(name).unwrap();
    let all = model.data.tensor_bytes(tensor).unwrap();
    let rows = expert_rows(tensor, 1).unwrap();
    assert_eq!(rows, 2..4);
    assert_eq!(model.data.rows(tensor, rows).unwrap(), &all[36..72]);
    assert_eq!(expert_rows(tensor, 3), None);
    assert_eq!(expert_rows(model.checkpoint.tensor("output.weight").unwrap(), 0), None);
}

#[test]
fn rows_out_of_range_are_refused() {
    let model = open(&fixture("tiny.gguf")).unwrap();
    let tensor = model.checkpoint.tensor("output.weight").unwrap();
    for (rows, room) in [(0..4, 48), (3..4, 12), (0..1, 11), (0..u64::MAX, 0)] {
        let result = model.data.read_rows(tensor, rows.clone(), &mut vec![0; room]);
        assert!(matches!(result, Err(LoadError::Rows { .. })), "{rows:?}");
    }
    let backwards = std::ops::Range { start: 2, end: 1 };
    assert_eq!(model.data.rows(tensor, backwards), None);
    assert_eq!(model.data.rows(tensor, 2..4), None);
    let error = model.read_rows("absent", 0..1, &mut []).unwrap_err();
    assert_eq!(error.to_string(), "tensor 'absent': no such tensor");
}

#[test]
fn any_part_opens_a_split_model() {
    for part in 1..=3 {
        let model = open(&fixture(&format!("split-{part:05}-of-00003.gguf"))).unwrap();
        assert_eq!(model.checkpoint.meta.str("general.name").unwrap(), "split");
        assert_eq!(model.data.files().len(), 3);
        let names: Vec<&str> = model.checkpoint.tensors.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["t0", "t1", "t2", "t3", "t4"]);
        for i in 0..5 {
            let expect: Vec<f32> = (0..2 * (3 + i)).map(value).collect();
            assert_eq!(decoded(&model, &format!("t{i}")), expect);
        }
    }
}

#[test]
fn a_split_model_that_is_incomplete_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let part = |i: u32| format!("split-{i:05}-of-00003.gguf");
    for i in [1, 3] {
        std::fs::copy(fixture(&part(i)), folder.path().join(part(i))).unwrap();
    }
    let error = open(&folder.path().join(part(1))).unwrap_err();
    assert!(error.to_string().contains("split-00002-of-00003.gguf"), "{error}");
    // The wrong file in the gap.
    std::fs::copy(fixture(&part(3)), folder.path().join(part(2))).unwrap();
    let error = open(&folder.path().join(part(1))).unwrap_err();
    assert!(error.to_string().contains("split.no"), "{error}");
    // One part under another name.
    std::fs::copy(fixture(&part(1)), folder.path().join("renamed.gguf")).unwrap();
    let error = open(&folder.path().join("renamed.gguf")).unwrap_err();
    assert!(error.to_string().contains("expected -00001-of-00003.gguf"), "{error}");
}

#[test]
fn a_sharded_folder_opens_and_its_pieces_are_assembled() {
    for path in [fixture("sharded"), fixture("sharded/model.safetensors.index.json")] {
        let model = open(&path).unwrap();
        assert_eq!(model.checkpoint.container, Container::Hf);
        assert_eq!(model.checkpoint.meta.u32("hidden_size").unwrap(), 9);
        let eos = model.checkpoint.meta.opt_list("generation_config.eos_token_id").unwrap();
        assert_eq!(eos.unwrap(), [MetaValue::Int(1), MetaValue::Int(2)]);
        assert_eq!(model.sidecars.tokenizer, Some(fixture("sharded/tokenizer.json")));
        assert_eq!(model.sidecars.tokenizer_config, None);
        assert_eq!(model.checkpoint.tensor("step").unwrap().shape, [0_u64; 0]);
        assert_eq!(
            decoded(&model, "model.embed_tokens.weight"),
            (0..54).map(value).collect::<Vec<_>>()
        );
        assert_eq!(decoded(&model, "model.norm.weight"), (0..9).map(value).collect::<Vec<_>>());
    }
}

#[test]
fn an_assembled_tensor_decodes_to_its_definition() {
    let model = open(&fixture("sharded")).unwrap();
    assert!(model.checkpoint.tensor("experts.down_proj_blocks").is_none());
    let tensor = model.checkpoint.tensor("experts.down_proj").unwrap();
    assert_eq!((tensor.format, tensor.shape.as_slice()), (FormatId::MXFP4, &[2, 4, 96][..]));
    assert!(matches!(model.data.tensor_bytes(tensor), Err(LoadError::Rows { .. })));
    assert_eq!(model.rows("experts.down_proj", 0..1), None);
    const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let expect: Vec<f32> = (0..2 * 4 * 96_usize)
        .map(|i| {
            let byte = (i / 2 * 29 % 256) as u8;
            let code = if i % 2 == 0 { byte & 15 } else { byte >> 4 };
            let scale = 2f32.powi(120 + (i as i32 / 32) % 16 - 127);
            let sign = if code & 8 != 0 { -1.0 } else { 1.0 };
            sign * E2M1[usize::from(code & 7)] * scale
        })
        .collect();
    assert_eq!(decoded(&model, "experts.down_proj"), expect);
}

#[test]
fn an_assembled_tensor_longer_than_its_buffers_reads_the_same() {
    // 5000 blocks and a bit in one read, more than are assembled at a time.
    let folder = tempfile::tempdir().unwrap();
    let (rows, groups) = (1667_u64, 3_u64);
    let blocks: Vec<u8> = (0..rows * groups * 16).map(|i| (i * i / 7) as u8).collect();
    let scales: Vec<u8> = (0..rows * groups).map(|i| (i % 251) as u8).collect();
    write_hf(
        folder.path(),
        &[
            ("w_blocks", FormatId::U8, &[rows, groups, 16], &blocks),
            ("w_scales", FormatId::U8, &[rows, groups], &scales),
        ],
    );
    let model = open(folder.path()).unwrap();
    decoded(&model, "w"); // compares every row with the whole
}

/// A folder with config.json and model.safetensors.
fn write_hf(folder: &Path, tensors: &[(&str, FormatId, &[u64], &[u8])]) {
    use tokenmill_files::write::{TensorHeader, write_safetensors};
    let headers: Vec<TensorHeader> = tensors
        .iter()
        .map(|&(name, format, shape, _)| TensorHeader {
            name: name.to_owned(),
            format,
            shape: shape.to_vec(),
        })
        .collect();
    let mut file = std::fs::File::create(folder.join("model.safetensors")).unwrap();
    write_safetensors(&mut file, &headers, |header, out| {
        let (.., bytes) = tensors.iter().find(|(name, ..)| *name == header.name).unwrap();
        out.write_all(bytes)
    })
    .unwrap();
    std::fs::write(folder.join("config.json"), "{}").unwrap();
}

#[test]
fn paths_that_are_no_model_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let weights = std::fs::read(fixture("tiny.gguf")).unwrap();
    write("two/a.gguf", &weights);
    write("two/b.gguf", &weights);
    write("pickle/pytorch_model.bin", b"PK\x03\x04");
    write("lone/model.safetensors", b"\x02\0\0\0\0\0\0\0{}");
    for (path, expect) in [
        (folder.path().join("absent"), "No such file"),
        (folder.path().join("two"), "several models, name one of: a.gguf, b.gguf"),
        (folder.path().join("pickle"), "PyTorch .bin files are not read"),
        (folder.path().join("pickle/pytorch_model.bin"), "pickle"),
        (folder.path().join("lone/model.safetensors"), "config.json"),
        (write("text.txt", b"hello"), "neither GGUF nor safetensors"),
        (write("empty.gguf", b""), "neither GGUF nor safetensors"),
        (write("old.bin", b"tjgg\x01\0\0\0"), "before GGUF"),
        (write("v1.gguf", b"GGUF\x01\0\0\0\0\0\0\0"), "GGUF version 1"),
        (write("v4.gguf", b"GGUF\x04\0\0\0\0\0\0\0"), "GGUF version 4 is not supported"),
        (write("be.gguf", b"GGUF\0\0\0\x03\0\0\0\0"), "big-endian GGUF (version 3)"),
    ] {
        let error = open(&path).unwrap_err().to_string();
        assert!(error.contains(expect), "{}: {error}", path.display());
    }
}

#[test]
fn shard_indexes_cannot_leave_their_folder_or_lie() {
    let folder = tempfile::tempdir().unwrap();
    write_hf(folder.path(), &[("w", FormatId::F32, &[1, 1], &[0; 4])]);
    let index = folder.path().join("model.safetensors.index.json");
    for (map, expect) in [
        (r#"{"w": "../model.safetensors"}"#, "plain file names"),
        (r#"{"w": "/etc/passwd"}"#, "plain file names"),
        (r#"{"w": ".."}"#, "plain file names"),
        (r#"{"w": "./../model.safetensors"}"#, "plain file names"),
        (r#"{"w": ".//etc/passwd"}"#, "plain file names"),
        (r#"{"w": "./"}"#, "plain file names"),
        (r#"{"w": ""}"#, "plain file names"),
        (r#"{"v": "model.safetensors"}"#, "no such tensor there"),
        (r#"{"w": 3}"#, "expected a string"),
        (r#"[]"#, "a map of tensor name to file name"),
    ] {
        std::fs::write(&index, format!("{{\"weight_map\": {map}}}")).unwrap();
        let error = open(&index).unwrap_err().to_string();
        assert!(error.contains(expect), "{map}: {error}");
    }
    for file in ["model.safetensors", "./model.safetensors", "././model.safetensors"] {
        std::fs::write(&index, format!("{{\"weight_map\": {{\"w\": {file:?}}}}}")).unwrap();
        assert_eq!(open(&index).unwrap().checkpoint.tensors.len(), 1);
    }
}
