//! Folders whose files do not fit each other, and files that are no models: what can be read right is
//! read, the rest says what is wrong and what to do.

use std::path::Path;

use tokenmill_files::open;
use tokenmill_files::write::{TensorHeader, write_safetensors};
use tokenmill_quant::FormatId;

/// A safetensors file that holds one number under each name.
fn weights(names: &[&str]) -> Vec<u8> {
    let header = |name: &&str| TensorHeader {
        name: (*name).to_owned(),
        format: FormatId::F32,
        shape: vec![1, 1],
    };
    let headers: Vec<TensorHeader> = names.iter().map(header).collect();
    let mut file = Vec::new();
    write_safetensors(&mut file, &headers, |_, out| out.write_all(&[0; 4])).unwrap();
    file
}

fn index(entries: &[(&str, &str)]) -> Vec<u8> {
    let pairs: Vec<String> = entries.iter().map(|(t, f)| format!("{t:?}: {f:?}")).collect();
    format!("{{\"weight_map\": {{{}}}}}", pairs.join(", ")).into_bytes()
}

/// The tensors of the model that `entry` of a folder opens, or why it does not.
fn opened(files: &[(&str, Vec<u8>)], entry: &str) -> Result<Vec<String>, String> {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let path = if entry.is_empty() { folder.path().to_owned() } else { folder.path().join(entry) };
    let model = open(&path).map_err(|e| e.to_string())?;
    let mut names: Vec<String> = model.checkpoint.tensors.iter().map(|t| t.name.clone()).collect();
    names.sort();
    Ok(names)
}

const INDEX: &str = "model.safetensors.index.json";
const WHOLE: &str = "model.safetensors";

fn part(i: u32, of: u32) -> String {
    format!("model-{i:05}-of-{of:05}.safetensors")
}

/// Files beside config.json.
type Files<'a> = Vec<(&'a str, Vec<u8>)>;

fn with_config<'a>(mut files: Files<'a>) -> Files<'a> {
    files.push(("config.json", b"{}".to_vec()));
    files
}

#[test]
fn an_index_that_names_absent_files_gives_way() {
    let (one, two, five) = (part(1, 2), part(2, 2), part(5, 5));
    let stale = || index(&[("a", five.as_str()), ("b", "model-00001-of-00005.safetensors")]);
    for (what, files, entry, expect) in [
        ("one whole", vec![(INDEX, stale()), (WHOLE, weights(&["a"]))], "", vec!["a"]),
        (
            "a whole set",
            vec![(INDEX, stale()), (&one, weights(&["a"])), (&two, weights(&["b"]))],
            "",
            vec!["a", "b"],
        ),
        ("another name", vec![(INDEX, stale()), ("w.safetensors", weights(&["a"]))], "", vec!["a"]),
        (
            "one shard of its own and a whole",
            vec![(INDEX, stale()), (&five, weights(&["b"])), (WHOLE, weights(&["a"]))],
            "",
            vec!["a"],
        ),
        (
            "no index",
            vec![(&one, weights(&["a"])), (&two, weights(&["b"])), ("c.safetensors", weights(&[]))],
            "",
            vec!["a", "b"],
        ),
        (
            "no index, and tensors beside the parts",
            vec![
                (&one, weights(&["a"])),
                (&two, weights(&["b"])),
                ("model_extra_tensors.safetensors", weights(&["c"])),
            ],
            "",
            vec!["a", "b", "c"],
        ),
        (
            "a part by its name",
            vec![(&one, weights(&["a"])), (&two, weights(&["b"]))],
            &two,
            vec!["a", "b"],
        ),
        (
            "tensors in other files than the index says",
            vec![
                (INDEX, index(&[("a", &two), ("b", &one)])),
                (&one, weights(&["a"])),
                (&two, weights(&["b", "c"])),
            ],
            "",
            vec!["a", "b", "c"],
        ),
    ] {
        let found = opened(&with_config(files), entry);
        let expect: Vec<String> = expect.into_iter().map(str::to_owned).collect();
        assert_eq!(found, Ok(expect), "{what}");
    }
}

/// As transformers does: the index is not even read.
#[test]
fn the_usual_whole_file_comes_first() {
    let (one, two) = (part(1, 2), part(2, 2));
    for (what, index) in [
        ("fits shards", index(&[("b", &one), ("c", &two)])),
        ("names the whole file and more", index(&[("a", WHOLE), ("b", "x.safetensors")])),
        ("names tensors that no file has", index(&[("z", WHOLE)])),
        ("is empty", Vec::new()),
        ("is no JSON", b"<html>".to_vec()),
        ("has no weight_map", b"{\"metadata\": {}}".to_vec()),
        ("has none", b"{\"metadata\": null, \"weight_map\": null}".to_vec()),
        ("names other folders", b"{\"weight_map\": {\"a\": \"../a.safetensors\"}}".to_vec()),
    ] {
        let files = vec![
            (INDEX, index),
            (&one, weights(&["b"])),
            (&two, weights(&["c"])),
            (WHOLE, weights(&["a"])),
        ];
        assert_eq!(opened(&with_config(files), ""), Ok(vec!["a".to_owned()]), "{what}");
    }
}

#[test]
fn the_index_says_which_of_two_tensors_of_a_name_counts() {
    let names = [part(1, 2), part(2, 2)];
    for (at, file) in names.iter().enumerate() {
        let other = &names[1 - at];
        let files = [
            (INDEX, index(&[("b", &format!("./{file}")), ("c", other)])),
            ("config.json", b"{}".to_vec()),
            (&names[0], weights(&["b", "c"])),
            (&names[1], weights(&["b", "c"])),
        ];
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in &files {
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        let model = open(folder.path()).unwrap();
        assert_eq!(model.checkpoint.tensors.len(), 2);
        // Files are numbered as the index comes to them.
        for (tensor, number) in [("b", 0), ("c", 1)] {
            assert_eq!(model.checkpoint.tensor(tensor).unwrap().extent.file, number, "{file}");
        }
    }
}

#[test]
fn names_of_norms_from_tensorflow_become_those_of_today() {
    for (stored, expect) in [
        ("bert.embeddings.LayerNorm.gamma", "bert.embeddings.LayerNorm.weight"),
        ("encoder.layer.0.output.LayerNorm.beta", "encoder.layer.0.output.LayerNorm.bias"),
        ("LayerNorm.gamma", "LayerNorm.weight"),
        ("layers.0.norm.gamma", "layers.0.norm.gamma"),
        ("LayerNorm.gammas", "LayerNorm.gammas"),
    ] {
        let found = opened(&with_config(vec![(WHOLE, weights(&[stored]))]), "");
        assert_eq!(found, Ok(vec![expect.to_owned()]));
    }
}

/// What is wrong with a file of defaults is told, and refuses nothing.
#[test]
fn defaults_that_cannot_be_read_are_kept_as_what_is_wrong_with_them() {
    const MARK: &str = "\u{feff}";
    for (json, expect) in [
        (format!("{MARK}{{\"top_k\": 7}}"), None),
        ("{\"top_k\": 7}".to_owned(), None),
        ("{\"top_k\": 7".to_owned(), Some("generation_config.json: config: expected valid JSON")),
        (String::new(), Some("generation_config.json: config: expected valid JSON")),
        ("[7]".to_owned(), Some("expected a JSON map, found another JSON value")),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            std::fs::write(folder.path().join(name), bytes).unwrap();
        };
        write("config.json", format!("{MARK}{{\"model_type\": \"llama\"}}").as_bytes());
        write("generation_config.json", json.as_bytes());
        write(WHOLE, &weights(&["a"]));
        let meta = open(folder.path()).unwrap().checkpoint.meta;
        assert_eq!(meta.str("model_type").unwrap(), "llama");
        match expect {
            None => assert_eq!(meta.u32("generation_config.top_k").unwrap(), 7),
            Some(expect) => {
                let told = meta.str("generation_config").unwrap();
                assert!(told.contains(expect), "{told}");
                assert_eq!(meta.get("generation_config.top_k"), None);
            }
        }
    }
}

/// Opening a pipe would wait for its writer.
#[cfg(unix)]
#[test]
fn pipes_are_refused_before_they_are_opened() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), "{}").unwrap();
    for name in ["pipe", "pipe.gguf", "model-00001-of-00001.safetensors", INDEX, WHOLE] {
        let path = folder.path().join(name);
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let error = open(&path).unwrap_err().to_string();
        assert_eq!(error, format!("{}: not a model: not a regular file", path.display()));
    }
    assert!(open(folder.path()).unwrap_err().to_string().contains("not a regular file"));
}

#[test]
fn what_makes_no_whole_model_is_refused() {
    let (one, two, three) = (part(1, 3), part(2, 3), part(3, 3));
    let (other, last) = (part(1, 2), part(2, 2));
    let whole = || vec![(other.as_str(), weights(&["a"])), (last.as_str(), weights(&["b"]))];
    let own = || index(&[("a", &one), ("b", &two), ("c", &three)]);
    for (what, files, entry, expect) in [
        (
            "an unfinished download",
            vec![(INDEX, own()), (&one, weights(&["a"]))],
            "",
            "the index does not fit the folder: 2 of the 3 files it names are missing \
             (model-00002-of-00003.safetensors, model-00003-of-00003.safetensors); download them",
        ),
        (
            "the index by its name",
            vec![(INDEX, own()), (WHOLE, weights(&["a"]))],
            INDEX,
            "3 of the 3 files it names are missing",
        ),
        (
            "an index that names the only file and more",
            vec![
                (INDEX, index(&[("a", "w.safetensors"), ("b", "x.safetensors")])),
                ("w.safetensors", weights(&["a"])),
            ],
            "",
            "1 of the 2 files it names are missing (x.safetensors)",
        ),
        (
            "no index",
            vec![(&one, weights(&["a"])), (&three, weights(&["c"]))],
            "",
            "1 of the 3 parts of the model are missing (model-00002-of-00003.safetensors)",
        ),
        (
            "a part by its name",
            vec![(&one, weights(&["a"]))],
            &one,
            "2 of the 3 parts of the model are missing",
        ),
        (
            "parts of two sets",
            [whole(), vec![(&one, weights(&["c"]))]].concat(),
            "",
            "several models, name one of",
        ),
        (
            "parts of two sets and a stale index",
            [whole(), vec![(&one, weights(&["c"])), (INDEX, index(&[("a", "y.safetensors")]))]]
                .concat(),
            "",
            "the index does not fit the folder",
        ),
        (
            "one tensor twice",
            vec![(&other, weights(&["a", "b"])), (&last, weights(&["b"]))],
            "",
            "tensor 'b': expected one tensor of this name, found two",
        ),
        (
            "one tensor twice, and an index that does not name it",
            vec![
                (INDEX, index(&[("a", &other), ("c", &last)])),
                (&other, weights(&["a", "b"])),
                (&last, weights(&["b", "c"])),
            ],
            "",
            "tensor 'b': expected one tensor of this name, found two",
        ),
        (
            "an index of tensors that no file has",
            vec![(INDEX, index(&[("z", "w.safetensors")])), ("w.safetensors", weights(&["a"]))],
            "",
            "no such tensor there: the index does not fit the files",
        ),
        (
            "two models",
            vec![("a.safetensors", weights(&["a"])), ("b.safetensors", weights(&["a"]))],
            "",
            "several models, name one of: a.safetensors, b.safetensors",
        ),
        (
            "a pointer in place of a part",
            vec![
                (&other, weights(&["a"])),
                (&last, b"version https://git-lfs.github.com/spec/v1\nsize 9\n".to_vec()),
            ],
            "",
            "model-00002-of-00002.safetensors: not a model: a Git LFS pointer of 50 bytes in place \
             of the file of 9 bytes; run git lfs pull",
        ),
    ] {
        let error = opened(&with_config(files), entry).expect_err(what);
        assert!(error.contains(expect), "{what}: {error}");
    }
}

#[test]
fn folders_without_a_model_say_what_they_lack() {
    let bytes = || b"x".to_vec();
    for (files, expect) in [
        (vec![], "no .gguf, no config.json with .safetensors"),
        (vec![("config.json", b"{}".to_vec())], "config.json without weights"),
        (vec![(WHOLE, weights(&["a"]))], "no config.json beside model.safetensors"),
        (
            vec![("config.json", b"{}".to_vec()), ("pytorch_model.bin", bytes())],
            "no .gguf and no .safetensors but pytorch_model.bin",
        ),
        (vec![("model.onnx", bytes()), ("config.json", b"{}".to_vec())], "an ONNX model"),
        (
            vec![
                ("adapter_config.json", b"{}".to_vec()),
                ("adapter_model.safetensors", weights(&[])),
            ],
            "an adapter (LoRA), not a model",
        ),
        (
            vec![("params.json", b"{}".to_vec()), ("consolidated.safetensors", weights(&["a"]))],
            "Mistral's own layout",
        ),
        (
            vec![("config.json", b"<!doctype html><p>Sign in".to_vec()), (WHOLE, weights(&["a"]))],
            "config.json: config: expected a JSON map, found a web page (HTML)",
        ),
        (
            vec![("config.json", Vec::new()), (WHOLE, weights(&["a"]))],
            "expected a JSON map, found an empty file; download it again",
        ),
        (
            vec![
                ("config.json", b"version https://git-lfs.github.com/spec/v1\nsize 7\n".to_vec()),
                (WHOLE, weights(&["a"])),
            ],
            "a Git LFS pointer",
        ),
    ] {
        let error = opened(&files, "").expect_err(expect);
        assert!(error.contains(expect), "{expect}: {error}");
    }
}

#[test]
fn files_cut_short_say_how_much_is_missing() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let gguf = std::fs::read(fixtures.join("tiny.gguf")).unwrap();
    let tensors = weights(&["a", "b"]);
    let (at, all) = (tensors.len() - 5, tensors.len());
    for (name, bytes, expect) in [
        (
            "m.gguf",
            gguf[..gguf.len() - 100].to_vec(),
            format!("the file has {} bytes, and tensor", gguf.len() - 100),
        ),
        ("m.gguf", gguf[..300].to_vec(), "cut short: the file has 300 bytes".to_owned()),
        ("m.gguf", gguf[..6].to_vec(), "cut short: the file has 6 bytes".to_owned()),
        (
            WHOLE,
            tensors[..at].to_vec(),
            format!(
                "cut short: the file has {at} bytes, and the last tensor ends at byte {all}; \
                 download it again"
            ),
        ),
        (
            WHOLE,
            tensors[..20].to_vec(),
            "cut short: the file has 20 bytes, and header ends".to_owned(),
        ),
    ] {
        let error = opened(&with_config(vec![(name, bytes)]), name).expect_err(name);
        assert!(error.contains(&expect), "{name}: {error}");
    }
}
