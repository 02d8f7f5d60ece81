//! How weights lie in files: quantised exports, indexes that do not fit, heads.

use serde_json::{Value, json};

use super::program::{Server, case, json as read, refusal, scores};

fn scores_of(name: &str) {
    scores(&case(name), &case(name).join("expect.json"));
}

#[test]
fn fp8_config_of_transformers_5() {
    scores_of("fp8-config-of-transformers-5");
}

#[test]
fn gptq_exported_by_autoround() {
    scores_of("gptq-exported-by-autoround");
}

#[test]
fn gpt_oss_16_bit_experts() {
    scores_of("gpt-oss-16-bit-experts");
}

#[test]
fn stale_safetensors_index() {
    let folder = case("stale-safetensors-index");
    for model in [folder.clone(), folder.join("variant")] {
        scores(&model, &folder.join("expect.json"));
    }
}

#[test]
fn whole_file_beside_old_shards() {
    scores_of("whole-file-beside-old-shards");
}

/// An index that cannot be read, beside a whole file, does not matter.
#[test]
fn broken_index_beside_whole_file() {
    let from = case("whole-file-beside-old-shards");
    for index in ["", "{", "{\"metadata\": null, \"weight_map\": null}"] {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["model.safetensors", "config.json"] {
            std::fs::copy(from.join(name), folder.path().join(name)).expect("a copy");
        }
        let path = folder.path().join("model.safetensors.index.json");
        std::fs::write(path, index).expect("written");
        scores(folder.path(), &from.join("expect.json"));
    }
}

#[test]
fn tensor_twice_in_shards_index_names_one() {
    scores_of("tensor-twice-in-shards-index-names-one");
}

#[test]
fn fp8_static_activation_scale() {
    scores_of("fp8-static-activation-scale");
}

#[test]
fn bert_reranker_with_a_classifier() {
    ranks("bert-reranker-with-a-classifier");
}

#[test]
fn bert_gamma_beta() {
    ranks("bert-gamma-beta");
}

/// `/v1/rerank` gives the scores of a case.
fn ranks(name: &str) {
    let folder = case(name);
    let expect = read(&folder.join("expect.json"));
    let server = Server::start(&[folder.to_str().expect("UTF-8")]);
    let body = json!({ "query": expect["query"], "documents": expect["documents"] });
    let answer = server.client.post("/v1/rerank", &body).json();
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let results = list(&answer["results"]);
    let expected = list(&expect["relevance_scores"]);
    assert_eq!(results.len(), expected.len(), "{answer}");
    let tolerance = expect["tolerance"].as_f64().expect("a number");
    for result in &results {
        let index = result["index"].as_u64().expect("an index") as usize;
        let found = result["relevance_score"].as_f64().expect("a score");
        let expected = expected[index].as_f64().expect("a score");
        assert!((found - expected).abs() <= tolerance, "{index}: {found}, not {expected}");
    }
    let order: Vec<f64> =
        results.iter().map(|r| r["relevance_score"].as_f64().expect("a score")).collect();
    assert!(order.is_sorted_by(|a, b| a >= b), "{order:?}");
}

#[test]
fn classifiers_of_several_labels_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let from = case("bert-reranker-with-a-classifier");
    for name in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(from.join(name), folder.path().join(name)).expect("a copy");
    }
    let mut config = read(&from.join("config.json"));
    config["id2label"] = json!({ "0": "no", "1": "maybe", "2": "yes" });
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("written");
    let error = refusal(&["inspect", folder.path().to_str().expect("UTF-8"), "--spec"]);
    assert!(error.contains("num_labels") && error.contains("= 3 is not supported"), "{error}");
}
