//! What the files beside `tokenizer.json` add to it: `tokenizer_config.json`,
//! `special_tokens_map.json` and `added_tokens.json`, as the hubs' library reads them.

use serde_json::Value as Json;

use crate::lint::{Finding, Severity};
use crate::specials::SpecialToken;

/// Tokens with a part to play beside those that start and end a text.
const PARTS: &[&str] = &["unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
/// Lists of further control tokens, by their older and newer name.
const EXTRA: &[&str] = &["additional_special_tokens", "extra_special_tokens"];

/// Keys of tokenizer_config.json that are read here, or change nothing, and why. Of the others
/// those that could matter are told: see [`HfTokenizerConfig::from_json`].
const NEUTRAL: &[&str] = &[
    // tokenizer.json has what these were made into.
    "add_prefix_space",
    "legacy",
    "from_slow",
    "do_lower_case",
    "do_basic_tokenize",
    "never_split",
    "strip_accents",
    "tokenize_chinese_chars",
    "wordpieces_prefix",
    "trim_offsets",
    "errors",
    "sp_model_kwargs",
    "spaces_between_special_tokens",
    "vocab_type",
    "unicode_normalizer",
    "vocab_file",
    "tokenizer_file",
    "fix_mistral_regex",
    // Decoding gives the bytes of the tokens: the library ignores it for BPE too.
    "clean_up_tokenization_spaces",
    "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output",
    // Of batches and their tensors.
    "model_max_length",
    "max_length",
    "max_len",
    "stride",
    "padding",
    "padding_side",
    "pad_to_multiple_of",
    "pad_token_type_id",
    "truncation",
    "truncation_side",
    "truncation_strategy",
    "model_input_names",
    "return_token_type_ids",
    // Of templates that the library no longer has.
    "use_default_system_prompt",
    // Where the file comes from.
    "auto_map",
    "backend",
    "is_local",
    "local_files_only",
    "name_or_path",
    "processor_class",
    "special_tokens_map_file",
    "tokenizer_class",
    "added_tokens_file",
    "init_inputs",
    "transformers_version",
    "device_map",
    "use_fast",
    "unk_id",
    "model_specific_special_tokens",
    "image_processor_type",
    "response_schema",
    "chat_control_tokens",
];
/// Keys that are read.
const READ: &[&str] = &[
    "chat_template",
    "add_bos_token",
    "add_eos_token",
    "added_tokens_decoder",
    "bos_token",
    "eos_token",
    "split_special_tokens",
];

/// A token that another file than `tokenizer.json` lists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Added {
    /// Without a usable `id`.
    pub(crate) matched: SpecialToken,
    /// Its id, where the file says it.
    pub(crate) id: Option<u32>,
    pub(crate) special: bool,
}

/// What the files beside `tokenizer.json` say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HfTokenizerConfig {
    /// `bos_token`.
    pub bos: Option<String>,
    /// `eos_token`.
    pub eos: Option<String>,
    /// `add_bos_token`. Beside tokenizer.json it counts for nothing: its post-processor does.
    pub add_bos: Option<bool>,
    /// `add_eos_token`, likewise.
    pub add_eos: Option<bool>,
    /// `chat_template` by name: a single one is called `default`.
    pub chat_templates: Vec<(String, String)>,
    /// Other tokens with a name, such as `pad_token`, and their texts.
    pub(crate) named: Vec<(String, String)>,
    /// Further control tokens.
    pub(crate) extra: Vec<String>,
    /// Tokens listed beside the vocabulary.
    pub(crate) added: Vec<Added>,
    /// Whether tokenizer_config.json lists the added tokens: then the older files are not read.
    pub(crate) lists_added: bool,
    pub(crate) findings: Vec<Finding>,
}

impl HfTokenizerConfig {
    /// Takes the fields out of the parsed tokenizer_config.json. What is absent or of another type
    /// stays unset.
    pub fn from_json(config: &Json) -> HfTokenizerConfig {
        let flag = |key: &str| config.get(key).and_then(Json::as_bool);
        let chat_templates = match config.get("chat_template") {
            Some(Json::String(source)) => vec![("default".to_owned(), source.clone())],
            Some(Json::Array(named)) => named.iter().filter_map(named_template).collect(),
            _ => Vec::new(),
        };
        let mut found = HfTokenizerConfig {
            add_bos: flag("add_bos_token"),
            add_eos: flag("add_eos_token"),
            chat_templates,
            lists_added: config.get("added_tokens_decoder").is_some(),
            ..HfTokenizerConfig::default()
        };
        found.take_tokens(config);
        let listed = config.get("added_tokens_decoder").and_then(Json::as_object);
        for (id, token) in listed.into_iter().flatten() {
            let (Ok(id), Some(text)) = (id.parse(), text_of(token)) else { continue };
            let on = |key: &str| token.get(key).is_some_and(|on| on == true);
            let matched = SpecialToken {
                id: 0,
                text: text.to_owned(),
                strips_left: on("lstrip"),
                strips_right: on("rstrip"),
                single_word: on("single_word"),
            };
            found.added.push(Added { matched, id: Some(id), special: on("special") });
        }
        found.tell(config);
        found
    }

    /// Adds what special_tokens_map.json says. Newer folders list their tokens in
    /// tokenizer_config.json, and then the map counts for nothing.
    pub fn add_special_tokens_map(&mut self, map: &Json) {
        if !self.lists_added {
            self.take_tokens(map);
        }
    }

    /// Adds the tokens of added_tokens.json, a map of texts to ids, under the same condition.
    pub fn add_added_tokens(&mut self, map: &Json) {
        let map = map.as_object().filter(|_| !self.lists_added);
        for (text, id) in map.into_iter().flatten() {
            let id = id.as_u64().and_then(|id| u32::try_from(id).ok());
            let special = self.special_texts().any(|special| special == text);
            let matched = SpecialToken { text: text.clone(), ..SpecialToken::default() };
            self.added.push(Added { matched, id, special });
        }
    }

    /// Texts of the tokens with a part to play.
    pub(crate) fn special_texts(&self) -> impl Iterator<Item = &str> {
        let named = self.named.iter().map(|(_, text)| text);
        let all = self.bos.iter().chain(&self.eos).chain(named).chain(&self.extra);
        all.map(String::as_str)
    }

    /// Whether a token only has a part in batches and training.
    pub(crate) fn is_for_training(&self, text: &str) -> bool {
        self.named.iter().any(|(name, known)| known == text && PARTS.contains(&name.as_str()))
    }

    /// Takes tokens by their names; later files overrule earlier ones.
    fn take_tokens(&mut self, file: &Json) {
        for (name, value) in file.as_object().into_iter().flatten() {
            let text = text_of(value).map(str::to_owned);
            match name.as_str() {
                "bos_token" => self.bos = text,
                "eos_token" => self.eos = text,
                name if EXTRA.contains(&name) => self.take_extra(value),
                name if PARTS.contains(&name) || value.is_string() && name.ends_with("_token") => {
                    self.named.retain(|(known, _)| known != name);
                    self.named.extend(text.map(|text| (name.to_owned(), text)));
                }
                _ => {}
            }
        }
    }

    /// A list of tokens, or a map of names to them.
    fn take_extra(&mut self, value: &Json) {
        match value {
            Json::Array(list) => {
                self.extra.extend(list.iter().filter_map(text_of).map(str::to_owned))
            }
            Json::Object(map) => {
                let named =
                    map.iter().filter_map(|(n, v)| Some((n.clone(), text_of(v)?.to_owned())));
                self.named.extend(named);
            }
            _ => {}
        }
    }

    /// Tells of keys that are not followed.
    fn tell(&mut self, config: &Json) {
        let mut add = |severity, code, message: String| {
            self.findings.push(Finding { severity, code, message });
        };
        if config.get("split_special_tokens").is_some_and(|on| on == true) {
            let message = "tokenizer_config.json asks to split control tokens \
                           (split_special_tokens): those that a template writes stay tokens here";
            add(Severity::Warning, "split_special_tokens", message.to_owned());
        }
        let known = |key: &str| {
            let lists = [NEUTRAL, READ, PARTS, EXTRA];
            lists.iter().any(|list| list.contains(&key)) || key.ends_with("_token")
        };
        let keys = config.as_object().into_iter().flatten();
        let unknown: Vec<&str> = keys
            .filter(|(key, v)| !known(key) && !v.is_null())
            .map(|(key, _)| key.as_str())
            .collect();
        if !unknown.is_empty() {
            let message =
                format!("tokenizer_config.json has keys without a use: {}", unknown.join(", "));
            add(Severity::Note, "unknown_tokenizer_keys", message);
        }
    }
}

/// A token is its text, or an object with the text as `content`.
fn text_of(value: &Json) -> Option<&str> {
    value.as_str().or_else(|| value.get("content")?.as_str())
}

fn named_template(entry: &Json) -> Option<(String, String)> {
    let text = |key: &str| Some(entry.get(key)?.as_str()?.to_owned());
    Some((text("name")?, text("template")?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_older_files_count_where_the_newer_one_lists_no_tokens() {
        let map = json!({"bos_token": {"content": "<s>"}, "eos_token": null, "pad_token": "<p>",
                         "additional_special_tokens": ["<a>", {"content": "<b>"}]});
        let cases = [
            (json!({"bos_token": "<x>", "eos_token": "<y>"}), Some("<s>"), None, 4),
            (json!({"bos_token": "<x>", "added_tokens_decoder": {}}), Some("<x>"), None, 1),
            (json!(null), Some("<s>"), None, 4),
        ];
        for (config, bos, eos, texts) in cases {
            let mut found = HfTokenizerConfig::from_json(&config);
            found.add_special_tokens_map(&map);
            assert_eq!((found.bos.as_deref(), found.eos.as_deref()), (bos, eos), "{config}");
            assert_eq!(found.special_texts().count(), texts, "{config}");
        }
    }

    #[test]
    fn keys_are_followed_neutral_or_told() {
        let config = json!({"legacy": false, "model_max_length": 4096, "image_token": "<i>",
                            "tokenizer_class": "X", "shines": 1, "split_special_tokens": true});
        let found = HfTokenizerConfig::from_json(&config);
        let codes: Vec<&str> = found.findings.iter().map(|f| f.code).collect();
        assert_eq!(codes, ["split_special_tokens", "unknown_tokenizer_keys"]);
        assert!(found.findings[1].message.ends_with("use: shines"));
        assert_eq!(found.named, [("image_token".to_owned(), "<i>".to_owned())]);
    }
}
