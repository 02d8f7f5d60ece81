//! Tokenizers out of the `tokenizer.ggml.*` metadata of a GGUF file.

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::json;

use crate::bpe::{ByteBpe, CharBpe, CharRule, FastMap, MergeTable, SPACE_MARK};
use crate::byte_level::ByteDecoder;
use crate::charsmap;
use crate::hf_config::HfTokenizerConfig;
use crate::hf_json::{self, Ends};
use crate::infill::{Infill, Named};
use crate::lint::{Finding, Severity};
use crate::pretokenize::{self, PreTokenizer};
use crate::specials::{SpecialSet, SpecialToken};
use crate::tokenizer::{Core, Parts, TokenTable, Tokenizer, TokenizerError};
use crate::turn_ends::{self, TURN_ENDS};

/// What a GGUF file says about its vocabulary: one field per `tokenizer.ggml.*` key, as read.
#[derive(Debug, Clone, Default)]
pub struct GgufVocab {
    /// `model`: `gpt2`, `llama`, `gemma4`, `bert`, `t5`.
    pub model: String,
    /// `pre`: the kind of pre-tokenizer.
    pub pre: Option<String>,
    /// `tokens`: text of each id, in the spelling of the vocabulary.
    pub tokens: Vec<String>,
    /// `scores`: one per token, or empty.
    pub scores: Vec<f32>,
    /// `token_type`: one [`TokenType`] code per token, or empty.
    pub token_types: Vec<i32>,
    /// `merges`: `left right`, best first.
    pub merges: Vec<String>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `eot_token_id`: end of turn.
    pub eot: Option<u32>,
    /// `eom_token_id`: end of message.
    pub eom: Option<u32>,
    /// `unknown_token_id`.
    pub unk: Option<u32>,
    /// `seperator_token_id` (spelled so in the format).
    pub sep: Option<u32>,
    /// `padding_token_id`.
    pub pad: Option<u32>,
    /// `fim_pre_token_id`, `fim_suf_token_id`, `fim_mid_token_id` and `fim_pad_token_id`; before them
    /// `prefix_token_id` and so on. Ids outside the vocabulary are none.
    pub fim: [Option<u32>; 4],
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_eos_token`.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `remove_extra_whitespaces`.
    pub remove_extra_whitespaces: Option<bool>,
    /// `precompiled_charsmap`: SentencePiece's normalisation, compiled.
    pub charsmap: Vec<u8>,
    /// `escape_whitespaces`.
    pub escape_whitespaces: Option<bool>,
    /// `treat_whitespace_as_suffix`.
    pub whitespace_as_suffix: Option<bool>,
    /// Every key of the file that starts with `tokenizer.`, without that.
    pub keys: Vec<String>,
}

/// Keys that are read, or change nothing here: ids that only other uses need (infilling, masks),
/// and copies of what other keys say.
const KNOWN_KEYS: &[&str] = &[
    "chat_template",
    "chat_templates",
    "huggingface.json",
    "ggml.model",
    "ggml.pre",
    "ggml.tokens",
    "ggml.scores",
    "ggml.token_type",
    "ggml.token_type_count",
    "ggml.merges",
    "ggml.added_tokens",
    "ggml.add_bos_token",
    "ggml.add_eos_token",
    "ggml.add_sep_token",
    "ggml.add_space_prefix",
    "ggml.remove_extra_whitespaces",
    "ggml.precompiled_charsmap",
    "ggml.escape_whitespaces",
    "ggml.treat_whitespace_as_suffix",
];

/// What of the metadata is guessed or not followed.
fn findings(vocab: &GgufVocab) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut add = |severity, code, message: String| {
        found.push(Finding { severity, code, message });
    };
    let cuts_words = vocab.model == "gpt2";
    if cuts_words && vocab.pre.as_deref().is_none_or(str::is_empty) {
        let message = "the file does not say how its tokenizer cuts words (tokenizer.ggml.pre is \
                       missing): the default rules are a guess, and answers may be worse; convert \
                       the model anew with a current converter";
        add(Severity::Warning, "guessed_pre_tokenizer", message.to_owned());
    }
    let odd = [
        ("escape_whitespaces", vocab.escape_whitespaces == Some(false)),
        ("treat_whitespace_as_suffix", vocab.whitespace_as_suffix == Some(true)),
    ];
    for (key, _) in odd.iter().filter(|(_, is_odd)| *is_odd) {
        let message = format!("tokenizer.ggml.{key} is not followed: words are cut as usual");
        add(Severity::Warning, "unfollowed_tokenizer_key", message);
    }
    let known = |key: &str| {
        KNOWN_KEYS.contains(&key)
            || key.starts_with("ggml.") && key.ends_with("_token_id")
            || key.starts_with("chat_template.")
    };
    let unknown = vocab.keys.iter().filter(|key| !known(key));
    let unknown: Vec<String> = unknown.map(|key| format!("tokenizer.{key}")).collect();
    if !unknown.is_empty() {
        let message = format!("the file has keys without a use: {}", unknown.join(", "));
        add(Severity::Note, "unknown_tokenizer_keys", message);
    }
    found
}

/// The codes of `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenType {
    /// Produced by merging.
    Normal,
    /// Stands for what the vocabulary cannot spell.
    Unknown,
    /// Marks structure; never part of text.
    Control,
    /// Matched as a whole, also in plain text.
    UserDefined,
    /// Reserved; never produced.
    Unused,
    /// One raw byte, spelled `<0x0A>`.
    Byte,
}

impl TokenType {
    /// `None` for a code the format does not define.
    pub fn from_code(code: i32) -> Option<TokenType> {
        Some(match code {
            1 => TokenType::Normal,
            2 => TokenType::Unknown,
            3 => TokenType::Control,
            4 => TokenType::UserDefined,
            5 => TokenType::Unused,
            6 => TokenType::Byte,
            _ => return None,
        })
    }
}

impl Tokenizer {
    /// Builds the tokenizer a GGUF file describes.
    ///
    /// # Errors
    /// [`TokenizerError::UnknownModel`] and [`TokenizerError::UnknownPreTokenizer`] name what this
    /// crate lacks; the other errors say which part of the metadata is inconsistent.
    pub fn from_gguf(vocab: GgufVocab) -> Result<Tokenizer, TokenizerError> {
        let types = token_types(&vocab)?;
        for id in [vocab.bos, vocab.eos, vocab.eot, vocab.eom, vocab.unk, vocab.sep] {
            check_id(&vocab, id)?;
        }
        match vocab.model.as_str() {
            "gpt2" => byte_level(vocab, types),
            "llama" => scored(vocab, types),
            "gemma4" => listed_chars(vocab, types),
            "bert" => wordpiece(&vocab, &types),
            "t5" => unigram(&vocab, &types),
            _ => Err(TokenizerError::UnknownModel { model: vocab.model }),
        }
    }
}

fn check_id(vocab: &GgufVocab, id: Option<u32>) -> Result<(), TokenizerError> {
    match id {
        Some(id) if id as usize >= vocab.tokens.len() => {
            Err(TokenizerError::IdOutOfRange { id, vocab_size: vocab.tokens.len() })
        }
        _ => Ok(()),
    }
}

fn token_types(vocab: &GgufVocab) -> Result<Vec<TokenType>, TokenizerError> {
    let count = vocab.tokens.len();
    if count == 0 || u32::try_from(count).is_err() {
        return Err(TokenizerError::VocabularySize { tokens: count });
    }
    if vocab.token_types.is_empty() {
        return Ok(vec![TokenType::Normal; count]);
    }
    if vocab.token_types.len() != count {
        return Err(TokenizerError::LengthMismatch {
            what: "token_type",
            expected: count,
            found: vocab.token_types.len(),
        });
    }
    // Some converters write 0 ("undefined") for padding: nothing but a reserved slot.
    let parse = |&code: &i32| TokenType::from_code(code).unwrap_or(TokenType::Unused);
    let mut types: Vec<TokenType> = vocab.token_types.iter().map(parse).collect();
    // What starts or ends a text is a control token, also where a converter says otherwise.
    let ends = [vocab.bos, vocab.eos, vocab.eot, vocab.eom].into_iter().flatten();
    for id in ends {
        if let Some(kind) = types.get_mut(id as usize) {
            *kind = TokenType::Control;
        }
    }
    for (kind, text) in types.iter_mut().zip(&vocab.tokens) {
        if TURN_ENDS.contains(&text.as_str()) {
            *kind = TokenType::Control;
        }
    }
    Ok(types)
}

/// `gpt2`: byte-level BPE with listed merges.
fn byte_level(vocab: GgufVocab, types: Vec<TokenType>) -> Result<Tokenizer, TokenizerError> {
    let kind = vocab.pre.as_deref().filter(|pre| !pre.is_empty()).unwrap_or("default");
    // These name a byte-level model, but spell their vocabulary as SentencePiece does.
    if matches!(kind, "gemma4" | "sarvam-moe" | "granite-embed-multi-311m") {
        return listed_chars(vocab, types);
    }
    let pre = PreTokenizer::named(kind).ok_or_else(|| TokenizerError::UnknownPreTokenizer {
        kind: kind.to_owned(),
        known: pretokenize::known_names().collect(),
    })?;
    let ids = ids_by_text(&vocab, &types);
    let merges = merge_table(&vocab, &ids)?;
    let byte_ids = ByteBpe::byte_ids(|text| ids.get(text).copied());

    let decoder = ByteDecoder::new();
    let mut whole_words = FastMap::default();
    let mut table = TokenTable::default();
    for (id, (text, kind)) in (0u32..).zip(vocab.tokens.iter().zip(&types)) {
        // Added tokens are spelled as they are; a merged one never holds a raw space.
        let bytes = match kind {
            TokenType::Normal => decoder.decode(text),
            _ => None,
        };
        let bytes = bytes.unwrap_or_else(|| text.as_bytes().to_vec());
        if pre.whole_words && *kind == TokenType::Normal {
            whole_words.insert(bytes.clone().into_boxed_slice(), id);
        }
        table.push(&bytes, is_control(*kind));
    }
    let add_bos = pre.wants_bos;
    let unknown = None;
    let core = Core::Bytes(Box::new(ByteBpe { pre, merges, byte_ids, whole_words, unknown }));
    assemble(&vocab, &types, core, table, Defaults { add_bos, strips_lead: false })
}

/// `llama`: SentencePiece BPE, merges ranked by the score of what they make.
fn scored(vocab: GgufVocab, types: Vec<TokenType>) -> Result<Tokenizer, TokenizerError> {
    if vocab.scores.len() != vocab.tokens.len() {
        return Err(TokenizerError::LengthMismatch {
            what: "scores",
            expected: vocab.tokens.len(),
            found: vocab.scores.len(),
        });
    }
    let space_prefix = vocab.add_space_prefix.unwrap_or(true);
    let rule = CharRule::Score(ranks_of_scores(&vocab.scores));
    characters(vocab, types, rule, space_prefix)
}

/// `gemma4`: SentencePiece spelling with listed merges.
fn listed_chars(vocab: GgufVocab, types: Vec<TokenType>) -> Result<Tokenizer, TokenizerError> {
    let ids = ids_by_text(&vocab, &types);
    let rule = CharRule::Listed(merge_table(&vocab, &ids)?);
    let space_prefix = vocab.add_space_prefix.unwrap_or(false);
    characters(vocab, types, rule, space_prefix)
}

fn characters(
    vocab: GgufVocab,
    types: Vec<TokenType>,
    rule: CharRule,
    space_prefix: bool,
) -> Result<Tokenizer, TokenizerError> {
    let mut ids: FastMap<Box<str>, u32> = FastMap::default();
    let mut byte_ids = vec![None; 256];
    let mut table = TokenTable::default();
    let mut longest_bytes = 0;
    for (id, (text, kind)) in (0u32..).zip(vocab.tokens.iter().zip(&types)) {
        match kind {
            TokenType::Normal | TokenType::UserDefined => {
                ids.entry(text.as_str().into()).or_insert(id);
                longest_bytes = longest_bytes.max(text.len());
                table.push(text.replace(SPACE_MARK, " ").as_bytes(), false);
            }
            TokenType::Byte => {
                let byte = byte_of(text)
                    .ok_or_else(|| TokenizerError::BadByteToken { text: text.clone() })?;
                if let Some(slot) = byte_ids.get_mut(usize::from(byte)) {
                    *slot = Some(id);
                }
                table.push(&[byte], false);
            }
            TokenType::Unknown | TokenType::Control | TokenType::Unused => {
                table.push(text.as_bytes(), is_control(*kind));
            }
        }
    }
    let unknown = vocab.unk;
    let scored = matches!(rule, CharRule::Score(_));
    let core = CharBpe { rule, ids, byte_ids, unknown, longest_bytes, space_prefix };
    let defaults = Defaults { add_bos: scored, strips_lead: space_prefix };
    assemble(&vocab, &types, Core::Chars(Box::new(core)), table, defaults)
}

/// `bert`: WordPiece. Here a word starts with `▁`; as `tokenizer.json` spells it, its other pieces
/// start with `##`, and the same code runs both.
fn wordpiece(vocab: &GgufVocab, types: &[TokenType]) -> Result<Tokenizer, TokenizerError> {
    let mut pieces = serde_json::Map::new();
    let mut added = Vec::new();
    let mut cased = false;
    for (id, (text, kind)) in (0u32..).zip(vocab.tokens.iter().zip(types)) {
        if is_control(*kind) || text.starts_with('[') && text.ends_with(']') {
            added.push(json!({
                "id": id, "content": text, "special": true, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false,
            }));
            pieces.insert(text.clone(), id.into());
            continue;
        }
        cased |= text.contains(|c: char| c.is_ascii_uppercase());
        let piece = match text.strip_prefix(SPACE_MARK) {
            Some(word) => word.to_owned(),
            None => format!("##{text}"),
        };
        pieces.entry(piece).or_insert(id.into());
    }
    let name = |id: Option<u32>| id.and_then(|id| vocab.tokens.get(id as usize)).cloned();
    let unknown = name(vocab.unk).unwrap_or_else(|| "[UNK]".to_owned());
    let file = json!({
        "added_tokens": added,
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": true,
            "handle_chinese_chars": true,
            "strip_accents": null,
            "lowercase": !cased,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": false},
        "model": {
            "type": "WordPiece",
            "unk_token": unknown,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": pieces,
        },
    });
    let (bos, sep) = (name(vocab.bos), name(vocab.sep.or(vocab.eos)));
    let config = HfTokenizerConfig {
        add_bos: Some(bos.is_some() && vocab.add_bos.unwrap_or(true)),
        add_eos: Some(sep.is_some() && vocab.add_eos.unwrap_or(true)),
        bos,
        eos: sep,
        ..HfTokenizerConfig::default()
    };
    hf_json::from_value(&file, &config, Ends::Flags)
}

/// `t5`: SentencePiece unigram (XLM-R, T5), as `tokenizer.json` spells it.
fn unigram(vocab: &GgufVocab, types: &[TokenType]) -> Result<Tokenizer, TokenizerError> {
    let mut scores = vocab.scores.iter().enumerate();
    if let Some((id, score)) = scores.find(|(_, score)| !score.is_finite()) {
        let reason = format!("the score of token {id} is {score}, not a finite number");
        return Err(TokenizerError::File { file: "tokenizer.ggml.scores", reason });
    }
    let score = |id: usize| f64::from(vocab.scores.get(id).copied().unwrap_or(0.0));
    let (mut pieces, mut added) = (Vec::new(), Vec::new());
    for (id, (text, kind)) in vocab.tokens.iter().zip(types).enumerate() {
        match kind {
            TokenType::Normal => pieces.push(json!([text, score(id)])),
            _ => {
                // Never a part of text: its piece is one that no text has.
                pieces.push(json!([format!("\u{10ffff}{id}"), -1e6]));
                added.push(json!({
                    "id": id, "content": text, "special": *kind != TokenType::UserDefined,
                    "normalized": false, "single_word": false, "lstrip": false, "rstrip": false,
                }));
            }
        }
    }
    let unknown = types.iter().position(|kind| *kind == TokenType::Unknown);
    let unknown = vocab.unk.map(|id| id as usize).or(unknown).unwrap_or(0);
    let mut normalizers = Vec::new();
    if !vocab.charsmap.is_empty() {
        let file = "tokenizer.ggml.precompiled_charsmap";
        charsmap::longest(&vocab.charsmap)
            .map_err(|reason| TokenizerError::File { file, reason })?;
        let map = BASE64_STANDARD.encode(&vocab.charsmap);
        normalizers.push(json!({ "type": "Precompiled", "precompiled_charsmap": map }));
    }
    if vocab.remove_extra_whitespaces.unwrap_or(true) {
        for (pattern, content) in [(" {2,}", " "), ("\\A | \\z", "")] {
            normalizers.push(json!({
                "type": "Replace", "pattern": { "Regex": pattern }, "content": content,
            }));
        }
    }
    let prefix = if vocab.add_space_prefix.unwrap_or(true) { "always" } else { "never" };
    let spaces = json!({
        "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": prefix, "split": true,
    });
    let name = |id: Option<u32>| id.and_then(|id| vocab.tokens.get(id as usize)).cloned();
    let config = HfTokenizerConfig {
        bos: name(vocab.bos),
        eos: name(vocab.eos),
        add_bos: Some(vocab.add_bos.unwrap_or(false)),
        add_eos: Some(vocab.add_eos.unwrap_or(true)),
        ..HfTokenizerConfig::default()
    };
    let mut file = json!({
        "added_tokens": added,
        "normalizer": { "type": "Sequence", "normalizers": normalizers },
        "pre_tokenizer": spaces,
        "decoder": spaces,
        "model": { "type": "Unigram", "unk_id": unknown, "vocab": pieces, "byte_fallback": false },
    });
    if let (Some(true), Some(bos), Some(eos)) = (config.add_bos, &config.bos, &config.eos) {
        // A model with both reads pairs as RoBERTa does.
        file["post_processor"] = json!({
            "type": "RobertaProcessing", "cls": [bos, vocab.bos], "sep": [eos, vocab.eos],
            "trim_offsets": true, "add_prefix_space": true,
        });
    }
    hf_json::from_value(&file, &config, Ends::Flags)
}

/// What a model kind does where the metadata says nothing.
pub(crate) struct Defaults {
    pub(crate) add_bos: bool,
    /// Decoding drops one leading space: encoding put it there.
    pub(crate) strips_lead: bool,
}

/// Puts the parts every model kind shares around its core.
pub(crate) fn assemble(
    vocab: &GgufVocab,
    types: &[TokenType],
    core: Core,
    table: TokenTable,
    defaults: Defaults,
) -> Result<Tokenizer, TokenizerError> {
    let of_kind = |wanted: &dyn Fn(TokenType) -> bool| {
        let tokens = (0u32..).zip(vocab.tokens.iter().zip(types));
        let tokens = tokens.filter(|(_, (_, kind))| wanted(**kind));
        let tokens = tokens.map(|(id, (text, _))| SpecialToken {
            id,
            text: text.clone(),
            ..SpecialToken::default()
        });
        SpecialSet::new(tokens.collect()).ok_or(TokenizerError::TooManySpecials)
    };
    let control = of_kind(&is_control)?;
    let user_defined = of_kind(&|kind| kind == TokenType::UserDefined)?;

    let mut eos_ids: Vec<u32> = [vocab.eos, vocab.eot, vocab.eom].into_iter().flatten().collect();
    let tokens = (0u32..).zip(vocab.tokens.iter().zip(types));
    let tokens = tokens.filter(|(_, (_, kind))| is_control(**kind));
    eos_ids.extend(turn_ends::among(tokens.map(|(id, (text, _))| (id, text.as_str()))));
    let [prefix, suffix, middle, pad] =
        vocab.fim.map(|id| id.filter(|id| (*id as usize) < vocab.tokens.len()));
    let marks = Named { prefix, suffix, middle, pad };
    let add_bos = vocab.add_bos.unwrap_or(defaults.add_bos);
    let add_eos = vocab.add_eos.unwrap_or(false);
    Ok(Tokenizer::from_parts(Parts {
        core,
        control,
        user_defined,
        bos: vocab.bos,
        eos: vocab.eos,
        prefix: vocab.bos.filter(|_| add_bos).into_iter().collect(),
        suffix: vocab.eos.filter(|_| add_eos).into_iter().collect(),
        between: Vec::new(),
        typed: false,
        eos_ids,
        strips_lead: defaults.strips_lead,
        completes_chats: true,
        named: Vec::new(),
        infill: Infill::of(&table, marks),
        table,
        findings: findings(vocab),
    }))
}

/// Tokens that plain text never becomes.
pub(crate) fn is_control(kind: TokenType) -> bool {
    matches!(kind, TokenType::Control | TokenType::Unknown)
}

/// Text → id of the tokens merging may meet; the first of two equal texts wins.
fn ids_by_text<'v>(vocab: &'v GgufVocab, types: &[TokenType]) -> FastMap<&'v str, u32> {
    let mut ids = FastMap::default();
    for (id, (text, kind)) in (0u32..).zip(vocab.tokens.iter().zip(types)) {
        if matches!(kind, TokenType::Normal | TokenType::UserDefined | TokenType::Unused) {
            ids.entry(text.as_str()).or_insert(id);
        }
    }
    ids
}

fn merge_table(vocab: &GgufVocab, ids: &FastMap<&str, u32>) -> Result<MergeTable, TokenizerError> {
    if vocab.merges.is_empty() {
        return Err(TokenizerError::NoMerges);
    }
    let mut table = MergeTable::default();
    let mut joined = String::new();
    for (rank, merge) in (0u32..).zip(&vocab.merges) {
        let bad = || TokenizerError::BadMerge { index: rank, text: merge.clone() };
        // The left side may itself start with the separator's character.
        let cut = merge.char_indices().skip(1).find(|(_, c)| *c == ' ').ok_or_else(bad)?.0;
        let (left, right) = (merge.get(..cut), merge.get(cut + 1..));
        let (Some(left), Some(right)) = (left, right) else { return Err(bad()) };
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        let id = |text: &str| ids.get(text).copied().ok_or_else(bad);
        table.entry((id(left)?, id(right)?)).or_insert((rank, id(&joined)?));
    }
    Ok(table)
}

/// Higher score, lower rank; equal scores share a rank, so that the leftmost pair wins.
fn ranks_of_scores(scores: &[f32]) -> Vec<u32> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    let score = |i: usize| scores.get(i).copied().unwrap_or(f32::NEG_INFINITY);
    order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
    let mut ranks = vec![0; scores.len()];
    let mut rank = 0;
    let mut last = None;
    for i in order {
        if last.is_some_and(|last: f32| last != score(i)) {
            rank += 1;
        }
        last = Some(score(i));
        if let Some(slot) = ranks.get_mut(i) {
            *slot = rank;
        }
    }
    ranks
}

/// The byte of a token spelled `<0x0A>`.
pub(crate) fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}
