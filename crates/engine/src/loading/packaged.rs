//! How the files of a model want it to be sampled: `generation_config.json` of a folder, the keys
//! `general.sampling.*` of a GGUF file. Every key is used, changes no answer here, or is told.
//!
//! These are defaults, so a key that cannot be followed is no reason to refuse a model: it is named.

use std::ops::RangeInclusive;
use std::path::Path;

use tokenmill_ir::{Checkpoint, Container, Defaults, Meta, MetaValue, SamplingValues};

use crate::door;
use crate::load::LoadFailure;

/// Keys of generation_config.json that are followed, some of them elsewhere: the tokens that end an
/// answer by the vocabulary.
const USED: &[&str] = &[
    "do_sample",
    "eos_token_id",
    "max_new_tokens",
    "min_new_tokens",
    "min_p",
    "repetition_penalty",
    "stop_strings",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
];

/// Keys that change no answer here whatever they say, and why.
const NEUTRAL: &[(&str, &str)] = &[
    ("_from_model_config", "who wrote the file"),
    ("_commit_hash", "who wrote the file"),
    ("_original_object_hash", "who wrote the file"),
    ("transformers_version", "who wrote the file"),
    ("bos_token_id", "the tokenizer and the template say what a prompt begins with"),
    ("pad_token_id", "nothing is padded"),
    ("sep_token_id", "which token it is changes no answer"),
    ("cls_token_id", "which token it is changes no answer"),
    ("mask_token_id", "which token it is changes no answer"),
    ("unk_token_id", "which token it is changes no answer"),
    ("decoder_start_token_id", "no model here has an encoder and a decoder"),
    ("use_cache", "changes speed"),
    ("cache_implementation", "changes speed"),
    ("cache_config", "changes speed"),
    ("max_cache_len", "changes speed"),
    ("return_legacy_cache", "the form of an answer in Python"),
    ("low_memory", "changes speed"),
    ("attn_implementation", "changes speed"),
    ("trust_remote_code", "no code of a model is run"),
    ("prefill_chunk_size", "changes speed"),
    ("compile_config", "changes speed"),
    ("disable_compile", "changes speed"),
    ("continuous_batching_config", "changes speed"),
    ("use_mtp", "guesses change speed"),
    ("is_assistant", "guesses change speed"),
    ("num_assistant_tokens", "guesses change speed"),
    ("num_assistant_tokens_schedule", "guesses change speed"),
    ("assistant_confidence_threshold", "guesses change speed"),
    ("assistant_early_exit", "guesses change speed"),
    ("assistant_lookbehind", "guesses change speed"),
    ("assistant_ensemble_weight", "guesses change speed"),
    ("target_lookbehind", "guesses change speed"),
    ("speculation_type", "guesses change speed"),
    ("prompt_lookup_num_tokens", "guesses change speed"),
    ("max_matching_ngram_size", "guesses change speed"),
    ("output_attentions", "the form of an answer in Python"),
    ("output_hidden_states", "the form of an answer in Python"),
    ("output_scores", "the form of an answer in Python"),
    ("output_logits", "the form of an answer in Python"),
    ("return_dict_in_generate", "the form of an answer in Python"),
    (
        "max_length",
        "counts the prompt too: the context is that limit, max_new_tokens is the answer's",
    ),
    ("num_return_sequences", "requests say how many answers they want"),
    ("renormalize_logits", "probabilities always are of all that is left"),
    ("remove_invalid_values", "a row that is not a number fails its request"),
    ("early_stopping", "of beams, which num_beams asks for"),
    ("length_penalty", "of beams, which num_beams asks for"),
    ("num_beam_groups", "of beams, which num_beams asks for"),
    ("diversity_penalty", "of beams, which num_beams asks for"),
];

/// Keys that would change answers, with the number that asks for nothing.
const OFF: &[(&str, f64)] = &[
    ("num_beams", 1.0),
    ("top_h", 1.0),
    ("epsilon_cutoff", 0.0),
    ("eta_cutoff", 0.0),
    ("encoder_repetition_penalty", 1.0),
    ("no_repeat_ngram_size", 0.0),
    ("encoder_no_repeat_ngram_size", 0.0),
    ("min_length", 0.0),
    ("penalty_alpha", 0.0),
    ("guidance_scale", 1.0),
];

/// What transformers 5.24 fills in where a config says that answers are sampled: temperature,
/// `top_k`, `top_p` and `min_p`.
const TRANSFORMERS: (f32, u32, f32, f32) = (1.0, 50, 1.0, 0.0);

/// What the files say.
pub fn packaged(checkpoint: &Checkpoint) -> Defaults {
    let meta = &checkpoint.meta;
    match (checkpoint.container, meta.get("generation_config")) {
        (Container::Gguf, _) => from_gguf(meta),
        (Container::Hf, Some(MetaValue::Map(generation))) => from_generation(generation),
        (Container::Hf, Some(MetaValue::Str(error))) => Defaults {
            unused: vec![format!("a file of defaults that cannot be read ({error})")],
            ..Defaults::default()
        },
        (Container::Hf, _) => Defaults::default(),
    }
}

/// What the files at a path say; nothing where they cannot be read, which loading them tells.
pub fn packaged_at(path: &Path) -> Defaults {
    let read = || Ok::<_, LoadFailure>(packaged(&tokenmill_files::open(path)?.checkpoint));
    door::through(path, read).unwrap_or_default()
}

/// Reads values, and takes note of those that make no sense.
struct Reader<'a> {
    meta: &'a Meta,
    /// What the keys are of, for the notes.
    of: &'static str,
    unused: Vec<String>,
}

impl Reader<'_> {
    fn number(&mut self, key: &str, range: RangeInclusive<f64>) -> Option<f64> {
        let value = self.meta.get(key)?;
        let found = value.as_f64().filter(|n| range.contains(n));
        if found.is_none() {
            self.tell(key, value);
        }
        found
    }

    fn real(&mut self, key: &str, range: RangeInclusive<f64>) -> Option<f32> {
        self.number(key, range).map(|n| n as f32)
    }

    fn count(&mut self, key: &str, least: u32) -> Option<u32> {
        let value = self.meta.get(key)?;
        let found = value.as_u32().filter(|n| *n >= least);
        if found.is_none() {
            self.tell(key, value);
        }
        found
    }

    fn tell(&mut self, key: &str, value: &MetaValue) {
        self.unused.push(format!("{key} {} of {}", shown(value), self.of));
    }
}

/// A config that says how to draw is followed as transformers would, so what it leaves open is what
/// transformers fills in. `do_sample` may be left out: a temperature says the same.
fn from_generation(meta: &Meta) -> Defaults {
    let mut r = Reader { meta, of: "generation_config.json", unused: Vec::new() };
    let (temperature, k, p, m) = TRANSFORMERS;
    let draws = ["temperature", "top_k", "top_p", "min_p", "do_sample"];
    let greedy = meta.get("do_sample") == Some(&MetaValue::Bool(false));
    let mut sampling = SamplingValues {
        repeat_penalty: r.real("repetition_penalty", 0.01..=100.0),
        typical_p: r.real("typical_p", 0.0..=1.0).filter(|p| *p > 0.0 && *p < 1.0),
        min_tokens: r.count("min_new_tokens", 0).filter(|n| *n > 0),
        max_tokens: r.count("max_new_tokens", 1),
        stop: stops(&mut r),
        ..SamplingValues::default()
    };
    if draws.iter().any(|key| meta.get(key).is_some()) {
        let found = r.real("temperature", 0.0..=100.0).unwrap_or(temperature);
        sampling.temperature = Some(if greedy { 0.0 } else { found });
        sampling.top_k = Some(r.count("top_k", 0).unwrap_or(k));
        sampling.top_p = Some(r.real("top_p", 0.0..=1.0).unwrap_or(p).max(f32::MIN_POSITIVE));
        sampling.min_p = Some(r.real("min_p", 0.0..=1.0).unwrap_or(m));
    }
    for (key, value) in meta.iter() {
        let known = USED.contains(&key) || NEUTRAL.iter().any(|(name, _)| *name == key);
        if !known && !asks_nothing(key, value) {
            r.tell(key, value);
        }
    }
    Defaults { sampling, unused: r.unused, ..Defaults::default() }
}

fn asks_nothing(key: &str, value: &MetaValue) -> bool {
    match value {
        MetaValue::Null | MetaValue::Bool(false) => true,
        MetaValue::List(list) => list.is_empty(),
        MetaValue::Map(map) => map.iter().next().is_none(),
        other => OFF.iter().any(|(name, off)| *name == key && other.as_f64() == Some(*off)),
    }
}

/// A string or a list of strings.
fn stops(r: &mut Reader<'_>) -> Option<Vec<String>> {
    let value = r.meta.get("stop_strings")?;
    let text = |value: &MetaValue| match value {
        MetaValue::Str(text) if !text.is_empty() => Some(text.clone()),
        _ => None,
    };
    let found: Option<Vec<String>> = match value {
        MetaValue::List(list) => list.iter().map(text).collect(),
        one => text(one).map(|text| vec![text]),
    };
    if found.is_none() {
        r.tell("stop_strings", value);
    }
    found.filter(|list| !list.is_empty())
}

/// The keys that llama.cpp's converter writes and its programs read. What a file leaves open is
/// filled in as for one that says nothing, as they do.
fn from_gguf(meta: &Meta) -> Defaults {
    const PREFIX: &str = "general.sampling.";
    const USED: &[&str] = &[
        "temp",
        "top_k",
        "top_p",
        "min_p",
        "penalty_repeat",
        "penalty_last_n",
        "xtc_probability",
        "xtc_threshold",
        "mirostat_tau",
        "mirostat_eta",
    ];
    let mut r = Reader { meta, of: "the file", unused: Vec::new() };
    let key = |name: &str| format!("{PREFIX}{name}");
    let all = f64::from(i32::MIN)..=f64::from(i32::MAX);
    let window = r.number(&key("penalty_last_n"), all.clone()).unwrap_or(-1.0);
    let xtc = r.real(&key("xtc_probability"), 0.0..=1.0).filter(|p| *p > 0.0);
    let mirostat = meta.get(&key("mirostat")).and_then(MetaValue::as_f64) == Some(2.0);
    let sampling = SamplingValues {
        // At and below 0: the likeliest, and all.
        temperature: r.real(&key("temp"), -100.0..=100.0).map(|t| t.max(0.0)),
        top_k: r.number(&key("top_k"), all).map(|k| k.max(0.0) as u32),
        top_p: r.real(&key("top_p"), 0.0..=1.0).map(|p| p.max(f32::MIN_POSITIVE)),
        min_p: r.real(&key("min_p"), 0.0..=1.0),
        repeat_penalty: r.real(&key("penalty_repeat"), 0.01..=100.0).filter(|_| window != 0.0),
        repeat_last_n: (window > 0.0).then_some(window as u32),
        xtc_probability: xtc,
        xtc_threshold: r.real(&key("xtc_threshold"), 0.0..=1.0).filter(|_| xtc.is_some()),
        mirostat: mirostat.then_some(2),
        mirostat_tau: r.real(&key("mirostat_tau"), 0.0..=100.0).filter(|_| mirostat),
        mirostat_eta: r.real(&key("mirostat_eta"), 0.0..=10.0).filter(|_| mirostat),
        ..SamplingValues::default()
    };
    for (name, value) in meta.iter() {
        let Some(word) = name.strip_prefix(PREFIX) else { continue };
        let known = word == "mirostat" && [Some(0.0), Some(2.0)].contains(&value.as_f64());
        if !known && !USED.contains(&word) {
            r.tell(name, value);
        }
    }
    Defaults { sampling, unused: r.unused, ..Defaults::default() }
}

/// A value, short.
fn shown(value: &MetaValue) -> String {
    let text = match value {
        MetaValue::Null => "null".to_owned(),
        MetaValue::Bool(flag) => flag.to_string(),
        MetaValue::Int(n) => n.to_string(),
        MetaValue::Uint(n) => n.to_string(),
        MetaValue::Float(n) => n.to_string(),
        MetaValue::Str(text) => format!("{text:?}"),
        MetaValue::List(list) => format!("(a list of {})", list.len()),
        MetaValue::Map(_) => "(a map)".to_owned(),
    };
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(json: &str) -> Meta {
        let path = Path::new("generation_config.json");
        tokenmill_files::hf_config::parse(path, json.as_bytes()).unwrap()
    }

    /// What a config says, one `name value` each.
    fn generation(json: &str) -> Vec<String> {
        from_generation(&meta(json)).lines()
    }

    #[test]
    fn a_config_is_followed_as_transformers_would() {
        let filled = ["temperature 1", "top_k 50", "top_p 1", "min_p 0"];
        let table: &[(&str, &[&str])] = &[
            ("{}", &[]),
            (r#"{"eos_token_id":[1,2],"bos_token_id":0,"pad_token_id":2,"use_cache":true}"#, &[]),
            (r#"{"transformers_version":"5.24.0","_from_model_config":true}"#, &[]),
            (r#"{"do_sample":true}"#, &filled),
            (
                r#"{"do_sample":true,"temperature":0.6,"top_p":0.9}"#,
                &["temperature 0.6", "top_k 50", "top_p 0.9", "min_p 0"],
            ),
            (
                r#"{"do_sample":true,"temperature":0.7,"top_k":20,"top_p":0.8,"min_p":0.1}"#,
                &["temperature 0.7", "top_k 20", "top_p 0.8", "min_p 0.1"],
            ),
            (r#"{"temperature":0.3}"#, &["temperature 0.3", "top_k 50", "top_p 1", "min_p 0"]),
            (
                r#"{"do_sample":false,"temperature":0.6}"#,
                &["temperature 0", "top_k 50", "top_p 1", "min_p 0"],
            ),
            (r#"{"temperature":null,"do_sample":null,"top_k":null}"#, &[]),
            (r#"{"repetition_penalty":1.1}"#, &["repeat_penalty 1.1"]),
            (r#"{"max_new_tokens":2048,"max_length":99}"#, &["max_tokens 2048"]),
            (r#"{"max_length":20}"#, &[]),
            (r#"{"stop_strings":["a","b"]}"#, &[r#"stop "a""#, r#"stop "b""#]),
            (r#"{"stop_strings":"a"}"#, &[r#"stop "a""#]),
        ];
        for (json, expect) in table {
            assert_eq!(generation(json), *expect, "{json}");
        }
    }

    #[test]
    fn files_of_widely_used_models_have_nothing_untold() {
        let table: &[(&str, &[&str])] = &[
            // meta-llama/Llama-3.1-8B-Instruct
            (
                r#"{"bos_token_id":128000,"do_sample":true,"eos_token_id":[128001,128008,128009],
                "temperature":0.6,"top_p":0.9,"transformers_version":"4.42.3"}"#,
                &["temperature 0.6", "top_k 50", "top_p 0.9", "min_p 0"],
            ),
            // meta-llama/Llama-2-7b-chat-hf
            (
                r#"{"bos_token_id":1,"do_sample":true,"eos_token_id":2,"pad_token_id":0,
                "temperature":0.6,"max_length":4096,"top_p":0.9,"transformers_version":"4.32.0"}"#,
                &["temperature 0.6", "top_k 50", "top_p 0.9", "min_p 0"],
            ),
            // Qwen/Qwen2.5-7B-Instruct
            (
                r#"{"bos_token_id":151643,"pad_token_id":151643,"do_sample":true,
                "eos_token_id":[151645,151643],"repetition_penalty":1.05,"temperature":0.7,
                "top_p":0.8,"top_k":20,"transformers_version":"4.37.0"}"#,
                &["temperature 0.7", "top_k 20", "top_p 0.8", "min_p 0", "repeat_penalty 1.05"],
            ),
            // google/gemma-3-4b-it
            (
                r#"{"bos_token_id":2,"cache_implementation":"hybrid","do_sample":true,
                "eos_token_id":[1,106],"pad_token_id":0,"top_k":64,"top_p":0.95,
                "transformers_version":"4.50.0.dev0"}"#,
                &["temperature 1", "top_k 64", "top_p 0.95", "min_p 0"],
            ),
            // mistralai/Mistral-7B-Instruct-v0.3, microsoft/Phi-3-mini-4k-instruct, openai/gpt-oss
            (r#"{"_from_model_config":true,"bos_token_id":1,"eos_token_id":2}"#, &[]),
            (r#"{"_from_model_config":true,"eos_token_id":[32000,32001],"pad_token_id":0}"#, &[]),
            (
                r#"{"bos_token_id":199998,"do_sample":true,"eos_token_id":[200002,199999,200012],
                "pad_token_id":199999,"transformers_version":"4.55.0.dev0"}"#,
                &["temperature 1", "top_k 50", "top_p 1", "min_p 0"],
            ),
            // moonshotai/Kimi-K2-Instruct, LiquidAI/LFM2.5
            (r#"{"max_length":131072,"eos_token_id":163586}"#, &[]),
            (
                r#"{"_from_model_config":true,"bos_token_id":1,"eos_token_id":7,"pad_token_id":0,
                "do_sample":true,"temperature":0.1,"top_k":50,"repetition_penalty":1.05,
                "use_cache":true,"trust_remote_code":true,"cls_token_id":3}"#,
                &["temperature 0.1", "top_k 50", "top_p 1", "min_p 0", "repeat_penalty 1.05"],
            ),
        ];
        let more =
            (r#"{"typical_p":0.9,"min_new_tokens":5}"#, &["typical_p 0.9", "min_tokens 5"][..]);
        for (json, expect) in table.iter().chain([&more]) {
            let (mut found, mut expect) = (generation(json), expect.to_vec());
            found.sort();
            expect.sort_unstable();
            assert_eq!(found, expect, "{json}");
        }
    }

    #[test]
    fn what_is_not_followed_is_told() {
        let off = r#"{"num_beams":1,"typical_p":1.0,"penalty_alpha":0,"no_repeat_ngram_size":0,
            "suppress_tokens":[],"bad_words_ids":null,"forced_eos_token_id":null,"min_length":0,
            "token_healing":false,"length_penalty":2.0,"watermarking_config":{}}"#;
        assert_eq!(generation(off), [""; 0]);
        let of = "of generation_config.json";
        let table = [
            (r#"{"num_beams":4}"#, "num_beams 4"),
            (r#"{"penalty_alpha":0.6}"#, "penalty_alpha 0.6"),
            (r#"{"no_repeat_ngram_size":3}"#, "no_repeat_ngram_size 3"),
            (r#"{"suppress_tokens":[1,2]}"#, "suppress_tokens (a list of 2)"),
            (r#"{"max_time":1.5}"#, "max_time 1.5"),
            (r#"{"sequence_bias":{"a":1}}"#, "sequence_bias (a map)"),
            (r#"{"token_healing":true}"#, "token_healing true"),
            (r#"{"a_key_of_tomorrow":"x"}"#, "a_key_of_tomorrow \"x\""),
            (r#"{"repetition_penalty":"warm"}"#, "repetition_penalty \"warm\""),
            (r#"{"max_new_tokens":0}"#, "max_new_tokens 0"),
            (r#"{"stop_strings":[1]}"#, "stop_strings (a list of 1)"),
        ];
        for (json, told) in table {
            assert_eq!(generation(json), [format!("not used: {told} {of}")], "{json}");
        }
        let (json, wrong) = (r#"{"temperature":-1}"#, format!("not used: temperature -1 {of}"));
        assert_eq!(generation(json).last(), Some(&wrong));
    }

    #[test]
    fn no_key_is_in_two_tables() {
        let names = NEUTRAL.iter().chain(&[]).map(|(name, _)| *name);
        let mut all: Vec<&str> = names.chain(USED.iter().copied()).collect();
        all.extend(OFF.iter().map(|(name, _)| *name));
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn gguf_files_are_followed_as_llama_cpp_does() {
        type Keys = [(&'static str, f64)];
        let table: &[(&Keys, &[&str])] = &[
            (&[], &[]),
            (&[("temp", 0.6), ("top_k", 20.0)], &["temperature 0.6", "top_k 20"]),
            (&[("temp", -1.0), ("top_k", -1.0)], &["temperature 0", "top_k 0"]),
            (&[("top_p", 0.5), ("min_p", 0.0)], &["top_p 0.5", "min_p 0"]),
            (&[("penalty_repeat", 1.5), ("penalty_last_n", -1.0)], &["repeat_penalty 1.5"]),
            (&[("penalty_repeat", 1.5), ("penalty_last_n", 0.0)], &[]),
            (
                &[("penalty_repeat", 1.5), ("penalty_last_n", 64.0)],
                &["repeat_penalty 1.5", "repeat_last_n 64"],
            ),
            (&[("mirostat", 0.0), ("mirostat_tau", 5.0), ("xtc_probability", 0.0)], &[]),
            (&[("mirostat", 1.0)], &["not used: general.sampling.mirostat 1 of the file"]),
            (&[("mirostat", 2.0), ("mirostat_tau", 4.0)], &["mirostat 2", "mirostat_tau 4"]),
            (
                &[("xtc_probability", 0.5), ("xtc_threshold", 0.25)],
                &["xtc_probability 0.5", "xtc_threshold 0.25"],
            ),
            (&[("top_p", 1.5)], &["not used: general.sampling.top_p 1.5 of the file"]),
            (&[("new_one", 1.0)], &["not used: general.sampling.new_one 1 of the file"]),
        ];
        for (keys, expect) in table {
            let mut meta = Meta::new();
            meta.insert("general.name".into(), MetaValue::Str("x".into()));
            for (key, value) in *keys {
                meta.insert(format!("general.sampling.{key}"), MetaValue::Float(*value));
            }
            assert_eq!(from_gguf(&meta).lines(), *expect, "{keys:?}");
        }
    }
}
