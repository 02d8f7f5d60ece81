//! Byte-level BPE whose vocabulary is a list of byte strings in the order of merging:
//! `tekken.json` (Mistral) and `tiktoken.model` (Kimi).

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::Value as Json;

use crate::bpe::{ByteBpe, FastMap, MergeTable};
use crate::hf_config::HfTokenizerConfig;
use crate::pretokenize::PreTokenizer;
use crate::specials::{SpecialSet, SpecialToken};
use crate::tokenizer::{Core, Parts, TokenTable, Tokenizer, TokenizerError};
use crate::turn_ends;

/// Longest token, bytes: every cut of every token is looked up.
const MAX_TOKEN_BYTES: usize = 1024;

/// Most ids of a vocabulary.
const MAX_IDS: usize = 1 << 22;

/// Control tokens of Mistral's files that do not list their own.
const TEKKEN_CONTROL: &[&str] = &[
    "<unk>",
    "<s>",
    "</s>",
    "[INST]",
    "[/INST]",
    "[AVAILABLE_TOOLS]",
    "[/AVAILABLE_TOOLS]",
    "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]",
    "[TOOL_CALLS]",
    "[IMG]",
    "<pad>",
    "[IMG_BREAK]",
    "[IMG_END]",
    "[PREFIX]",
    "[MIDDLE]",
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
];

/// Ids behind the ranks of a `tiktoken.model` of Kimi that are control tokens, named or not.
const KIMI_CONTROL: usize = 256;

/// A vocabulary of byte strings: the lower the rank, the earlier a pair is merged into one.
struct Ranked {
    file: &'static str,
    /// By rank.
    tokens: Vec<Vec<u8>>,
    /// Id of rank 0.
    first_id: usize,
    pre: PreTokenizer,
    /// Ids and names.
    control: Vec<(usize, String)>,
}

impl Tokenizer {
    /// Builds the tokenizer a `tekken.json` describes.
    ///
    /// # Errors
    /// [`TokenizerError::File`] says what is wrong with it.
    pub fn from_tekken(file: &[u8]) -> Result<Tokenizer, TokenizerError> {
        let bad = |reason: &str| bad("tekken.json", reason);
        let file: Json = serde_json::from_slice(file).map_err(|e| bad(&e.to_string()))?;
        let number = |key: &str| file.get("config")?.get(key)?.as_u64().map(|n| n as usize);
        let size = number("default_vocab_size").filter(|&n| n <= MAX_IDS);
        let size = size.ok_or_else(|| bad("no usable config.default_vocab_size"))?;
        let first_id = number("default_num_special_tokens").filter(|&n| n <= size);
        let first_id = first_id.ok_or_else(|| bad("no usable default_num_special_tokens"))?;
        let pattern = file.get("config").and_then(|c| c.get("pattern")?.as_str());
        let pattern = pattern.ok_or_else(|| bad("no config.pattern"))?.to_owned();
        let pre = PreTokenizer::from_patterns(&[pattern], true, false)
            .ok_or_else(|| bad("a pattern that needs more than linear matching"))?;

        let list = file.get("vocab").and_then(Json::as_array).ok_or_else(|| bad("no vocab"))?;
        let token = |entry: &Json| BASE64_STANDARD.decode(entry.get("token_bytes")?.as_str()?).ok();
        let tokens: Option<Vec<Vec<u8>>> = list.iter().take(size - first_id).map(token).collect();
        let tokens = tokens.ok_or_else(|| bad("a token without token_bytes"))?;

        let mut control: Vec<(usize, String)> =
            (0..first_id).map(|id| (id, format!("<SPECIAL_{id}>"))).collect();
        let mut name = |id: usize, text: &str| {
            if let Some(slot) = control.get_mut(id) {
                slot.1 = text.to_owned();
            }
        };
        match file.get("special_tokens").and_then(Json::as_array) {
            Some(list) => {
                for entry in list {
                    let id = entry.get("rank").and_then(Json::as_u64);
                    let text = entry.get("token_str").and_then(Json::as_str);
                    let (id, text) = id.zip(text).ok_or_else(|| bad("a nameless special token"))?;
                    name(id as usize, text);
                }
            }
            None => TEKKEN_CONTROL.iter().enumerate().for_each(|(id, text)| name(id, text)),
        }
        let ranked = Ranked { file: "tekken.json", tokens, first_id, pre, control };
        let of = |text: &str| Some(text.to_owned());
        let config = HfTokenizerConfig {
            bos: of("<s>"),
            eos: of("</s>"),
            add_bos: Some(true),
            ..HfTokenizerConfig::default()
        };
        ranked.tokenizer(&config)
    }

    /// Builds the tokenizer of a `tiktoken.model`: lines of a token in base64 and its rank.
    /// `config` is the parsed `tokenizer_config.json` beside it.
    ///
    /// # Errors
    /// [`TokenizerError::File`] says what is wrong with it, or names a tokenizer class whose way of
    /// cutting words is code beside the model.
    pub fn from_tiktoken(file: &[u8], config: &Json) -> Result<Tokenizer, TokenizerError> {
        let bad = |reason: &str| bad("tiktoken.model", reason);
        let class = config.get("tokenizer_class").and_then(Json::as_str).unwrap_or_default();
        let pre = match class {
            "TikTokenTokenizer" => PreTokenizer::named("kimi-k2"),
            _ => None,
        };
        let pre = pre.ok_or_else(|| bad(&format!("tokenizer_class {class:?} is not supported")))?;
        let text = std::str::from_utf8(file).map_err(|e| bad(&e.to_string()))?;
        let mut tokens = Vec::new();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let entry = line.split_once(' ').and_then(|(token, rank)| {
                Some((BASE64_STANDARD.decode(token).ok()?, rank.trim().parse::<usize>().ok()?))
            });
            match entry {
                Some((token, rank)) if rank == tokens.len() => tokens.push(token),
                _ => return Err(bad(&format!("line {} is no token and rank", tokens.len() + 1))),
            }
        }
        let named = config.get("added_tokens_decoder");
        let name = |id: usize| {
            let text = named.and_then(|names| names.get(id.to_string())?.get("content")?.as_str());
            text.map_or_else(|| format!("<|reserved_token_{id}|>"), str::to_owned)
        };
        let behind = tokens.len()..tokens.len() + KIMI_CONTROL;
        let control = behind.map(|id| (id, name(id))).collect();
        let ranked = Ranked { file: "tiktoken.model", tokens, first_id: 0, pre, control };
        ranked.tokenizer(&HfTokenizerConfig::from_json(config))
    }
}

impl Ranked {
    fn tokenizer(self, config: &HfTokenizerConfig) -> Result<Tokenizer, TokenizerError> {
        let (first, count) = (self.first_id, self.tokens.len());
        let ids = control_end(&self.control).max(first + count);
        if ids > MAX_IDS {
            return Err(bad(self.file, "more ids than any vocabulary"));
        }
        if count == 0 {
            return Err(bad(self.file, "no tokens"));
        }
        if self.tokens.iter().any(|t| t.is_empty() || t.len() > MAX_TOKEN_BYTES) {
            return Err(bad(self.file, "an empty token, or one of more than 1024 bytes"));
        }
        let mut slots: Vec<Option<(Vec<u8>, bool)>> = vec![None; ids];
        let mut words: FastMap<Box<[u8]>, u32> = FastMap::default();
        for (id, token) in (first..).zip(&self.tokens) {
            words.entry(token.as_slice().into()).or_insert(id as u32);
            slots[id] = Some((token.clone(), false));
        }
        for (id, text) in &self.control {
            slots[*id] = Some((text.clone().into_bytes(), true));
        }
        let merges = merges(&self.tokens, first, &words);
        let byte_ids = (0..=255u8).map(|byte| words.get(&[byte][..]).copied()).collect();
        let core = ByteBpe { pre: self.pre, merges, byte_ids, whole_words: words, unknown: None };

        let id_of = |text: &Option<String>| {
            let found = self.control.iter().find(|(_, name)| Some(name) == text.as_ref());
            found.map(|(id, _)| *id as u32)
        };
        let (bos, eos) = (id_of(&config.bos), id_of(&config.eos));
        let mut eos_ids: Vec<u32> = eos.into_iter().collect();
        let names = self.control.iter().map(|(id, text)| (*id as u32, text.as_str()));
        eos_ids.extend(turn_ends::among(names.clone()));
        let control = names.map(|(id, text)| SpecialToken {
            id,
            text: text.to_owned(),
            ..SpecialToken::default()
        });
        let set = |tokens| SpecialSet::new(tokens).ok_or(TokenizerError::TooManySpecials);
        Ok(Tokenizer::from_parts(Parts {
            core: Core::Bytes(Box::new(core)),
            table: TokenTable::from_slots(&slots),
            control: set(control.collect())?,
            user_defined: set(Vec::new())?,
            bos,
            eos,
            prefix: bos.filter(|_| config.add_bos == Some(true)).into_iter().collect(),
            suffix: eos.filter(|_| config.add_eos == Some(true)).into_iter().collect(),
            between: Vec::new(),
            typed: false,
            eos_ids,
            strips_lead: false,
            completes_chats: false,
            named: config.named.clone(),
            infill: None,
            findings: config.findings.clone(),
        }))
    }
}

fn control_end(control: &[(usize, String)]) -> usize {
    control.iter().map(|(id, _)| id + 1).max().unwrap_or(0)
}

/// Any two neighbours that make a token merge, the token of the lowest rank first.
fn merges(tokens: &[Vec<u8>], first_id: usize, ids: &FastMap<Box<[u8]>, u32>) -> MergeTable {
    let mut table = MergeTable::default();
    for (rank, token) in tokens.iter().enumerate() {
        for cut in 1..token.len() {
            let (left, right) = token.split_at(cut);
            if let (Some(&left), Some(&right)) = (ids.get(left), ids.get(right)) {
                let made = (rank as u32, (rank + first_id) as u32);
                table.entry((left, right)).or_insert(made);
            }
        }
    }
    table
}

fn bad(file: &'static str, reason: &str) -> TokenizerError {
    TokenizerError::File { file, reason: reason.to_owned() }
}
