//! Tokenizers out of `tokenizer.json`.
//!
//! Byte-level BPE, which nearly all language models use, runs on this crate's own code: its time
//! is bounded for every input. Everything else (WordPiece, Unigram, Metaspace) runs in the
//! `tokenizers` library.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::Value as Json;

use crate::byte_level::ByteDecoder;
use crate::encoder::Ids;
use crate::hf_bytes;
use crate::hf_config::{Added, HfTokenizerConfig};
use crate::lint::{Finding, Severity};
use crate::normalizer;
use crate::specials::{SpecialSet, SpecialToken};
use crate::spelling::Spelling;
use crate::tokenizer::{Core, Parts, TokenTable, Tokenizer, TokenizerError};
use crate::turn_ends;

/// Highest token id a file may use.
const MAX_ID: u64 = 1 << 22;
/// Most values in a post-processor. Those in use have fewer than a hundred.
const MAX_PROCESSOR: usize = 1 << 14;

impl Tokenizer {
    /// Builds the tokenizer a `tokenizer.json` describes.
    ///
    /// # Errors
    /// [`TokenizerError::Json`] says what is wrong with the file.
    pub fn from_json(file: &[u8], config: &HfTokenizerConfig) -> Result<Tokenizer, TokenizerError> {
        let file: Json = serde_json::from_slice(file).map_err(|error| bad(error.to_string()))?;
        from_value(&file, config, Ends::Processor)
    }
}

/// What says which tokens a text starts and ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    /// The file's post-processor alone: the hubs' library does not follow `add_bos_token` and
    /// `add_eos_token` where there is a tokenizer.json (tried with transformers 5.24).
    Processor,
    /// The two flags.
    Flags,
}

/// Builds a tokenizer out of a parsed `tokenizer.json`.
pub(crate) fn from_value(
    file: &Json,
    config: &HfTokenizerConfig,
    ends: Ends,
) -> Result<Tokenizer, TokenizerError> {
    let mut added = added_tokens(file)?;
    let pieces = pieces(file)?;
    check_processor(file.get("post_processor"))?;
    let mut file = Cow::Borrowed(file);
    let unnumbered = complete(&mut file, &mut added, &pieces, config)?;
    let file = &*file;
    let (core, user_defined) = match hf_bytes::recognise(file, &pieces)? {
        Some(core) => {
            let user_defined = added.iter().filter(|token| !token.special);
            let user_defined = user_defined.map(|token| token.matched.clone()).collect();
            (Core::Bytes(Box::new(core)), user_defined)
        }
        // The library finds those by itself.
        None => (Core::Library(Box::new(Library::new(file)?)), Vec::new()),
    };
    let control: Vec<SpecialToken> =
        added.iter().filter(|token| token.special).map(|token| token.matched.clone()).collect();

    let id_of = |text: &str| {
        let added = added.iter().find(|token| token.matched.text == text);
        added.map(|t| t.matched.id).or_else(|| Some(pieces.iter().find(|(t, _)| t == text)?.1))
    };
    let bos = config.bos.as_deref().and_then(id_of);
    let eos = config.eos.as_deref().and_then(id_of);
    let (mut prefix, mut suffix) = frame(file.get("post_processor"));
    let mut findings = findings(file, config);
    findings.extend(without_id(&unnumbered));
    let flags = [
        ("add_bos_token", &mut prefix, &config.bos, bos, config.add_bos),
        ("add_eos_token", &mut suffix, &config.eos, eos, config.add_eos),
    ];
    for (flag, frame, text, token, wanted) in flags {
        let (Some(token), Some(wanted), Some(text)) = (token, wanted, text) else { continue };
        match ends {
            Ends::Flags => reconcile(frame, token, wanted),
            Ends::Processor if frame.contains(&token) != wanted => {
                findings.push(unfollowed(flag, text, wanted));
            }
            Ends::Processor => {}
        }
    }
    let mut eos_ids: Vec<u32> = eos.into_iter().collect();
    eos_ids.extend(turn_ends::among(control.iter().map(|t| (t.id, t.text.as_str()))));

    let spelling = Spelling::of(file, &pieces);
    Ok(Tokenizer::from_parts(Parts {
        core,
        table: table(&spelling, &pieces, &added),
        control: SpecialSet::new(control).ok_or(TokenizerError::TooManySpecials)?,
        user_defined: SpecialSet::new(user_defined).ok_or(TokenizerError::TooManySpecials)?,
        bos,
        eos,
        prefix,
        suffix,
        between: between(file.get("post_processor")),
        typed: typed(file.get("post_processor")),
        eos_ids,
        strips_lead: spelling.strips_lead,
        completes_chats: false,
        named: config.named.clone(),
        infill: None,
        findings,
    }))
}

/// A flag that says otherwise than the post-processor.
fn unfollowed(flag: &str, text: &str, wanted: bool) -> Finding {
    let does = if wanted { "does not add" } else { "adds" };
    let message = format!(
        "tokenizer_config.json has {flag} {wanted}, but the post-processor of tokenizer.json \
         {does} {text} to a text: that is followed (as in transformers)"
    );
    Finding { severity: Severity::Note, code: "unfollowed_flag", message }
}

/// Control tokens that no file gives an id.
fn without_id(texts: &[String]) -> Option<Finding> {
    if texts.is_empty() {
        return None;
    }
    let message = format!(
        "the files beside tokenizer.json name tokens that its vocabulary lacks, without an id: \
         {}; here they are plain text (transformers appends them to the vocabulary); give their \
         ids in added_tokens of tokenizer.json",
        texts.join(", ")
    );
    Some(Finding { severity: Severity::Warning, code: "tokens_without_id", message })
}

/// What of the files is not followed, and why.
fn findings(file: &Json, config: &HfTokenizerConfig) -> Vec<Finding> {
    let mut found = config.findings.clone();
    let dropout = file.get("model").and_then(|model| model.get("dropout")?.as_f64());
    if let Some(dropout) = dropout.filter(|dropout| *dropout > 0.0) {
        let message = format!(
            "tokenizer.json asks for BPE dropout ({dropout}), which cuts a text differently every \
             time: a device of training, left out here"
        );
        found.push(Finding { severity: Severity::Note, code: "bpe_dropout", message });
    }
    found
}

/// Adds the tokens that the files beside tokenizer.json name, as the hubs' library does: those
/// listed with ids, and those with a part to play that the vocabulary has. Tells the others.
fn complete(
    file: &mut Cow<'_, Json>,
    added: &mut Vec<AddedToken>,
    pieces: &Pieces,
    config: &HfTokenizerConfig,
) -> Result<Vec<String>, TokenizerError> {
    let mut known: HashSet<&str> = added.iter().map(|t| t.matched.text.as_str()).collect();
    let new = |known: &HashSet<&str>, text: &str| !text.is_empty() && !known.contains(text);
    let listed = config.added.iter().filter(|token| new(&known, &token.matched.text));
    let mut more: Vec<Added> = listed.cloned().collect();
    known.extend(config.added.iter().map(|token| token.matched.text.as_str()));
    for text in config.special_texts() {
        if new(&known, text) {
            known.insert(text);
            let matched = SpecialToken { text: text.to_owned(), ..SpecialToken::default() };
            more.push(Added { matched, id: None, special: true });
        }
    }
    if more.is_empty() {
        return Ok(Vec::new());
    }
    let (mut entries, mut unnumbered) = (Vec::new(), Vec::new());
    let mut by_text: HashMap<&str, u32> = HashMap::with_capacity(pieces.len());
    for (text, id) in pieces {
        by_text.entry(text).or_insert(*id);
    }
    let mut taken: HashSet<u32> = pieces.iter().map(|(_, id)| *id).collect();
    taken.extend(added.iter().map(|token| token.matched.id));
    for token in more {
        let text = &token.matched.text;
        let piece = by_text.get(text.as_str()).copied();
        // One without an id would be a new token, of which the model knows nothing.
        let Some(id) = piece.or(token.id) else {
            // Padding and masks are for training.
            if !config.is_for_training(text) {
                unnumbered.push(text.clone());
            }
            continue;
        };
        if !taken.insert(id) && piece.is_none() {
            let reason = format!("the token {text:?} has id {id}, which another one has");
            return Err(TokenizerError::File { file: "added tokens", reason });
        }
        entries.push(serde_json::json!({
            "id": id, "content": text, "special": token.special, "normalized": false,
            "single_word": token.matched.single_word, "lstrip": token.matched.strips_left,
            "rstrip": token.matched.strips_right,
        }));
        let matched = SpecialToken { id, ..token.matched };
        added.push(AddedToken { matched, special: token.special });
    }
    if entries.is_empty() {
        return Ok(unnumbered);
    }
    // The library reads them from the file.
    if let Some(file) = file.to_mut().as_object_mut() {
        let list = file.entry("added_tokens").or_insert_with(|| Json::Array(Vec::new()));
        if let Json::Array(list) = list {
            list.extend(entries);
        } else {
            *list = Json::Array(entries);
        }
    }
    Ok(unnumbered)
}

/// Bytes of every id; added tokens stand for their text.
fn table(spelling: &Spelling, pieces: &Pieces, added: &[AddedToken]) -> TokenTable {
    let ids = pieces.iter().map(|(_, id)| *id).chain(added.iter().map(|t| t.matched.id));
    let size = ids.max().map_or(0, |last| last as usize + 1);
    let mut slots: Vec<Option<(Vec<u8>, bool)>> = vec![None; size];
    let decoder = ByteDecoder::new();
    for (text, id) in pieces {
        if let Some(slot) = slots.get_mut(*id as usize) {
            *slot = Some((spelling.bytes(text, &decoder), false));
        }
    }
    for token in added {
        if let Some(slot) = slots.get_mut(token.matched.id as usize) {
            *slot = Some((token.matched.text.as_bytes().to_vec(), token.special));
        }
    }
    TokenTable::from_slots(&slots)
}

pub(crate) fn bad(reason: impl Into<String>) -> TokenizerError {
    TokenizerError::Json { reason: reason.into() }
}

/// An entry of `added_tokens`.
struct AddedToken {
    matched: SpecialToken,
    special: bool,
}

fn added_tokens(file: &Json) -> Result<Vec<AddedToken>, TokenizerError> {
    let empty = Vec::new();
    let entries = file.get("added_tokens").and_then(Json::as_array).unwrap_or(&empty);
    let parse = |entry: &Json| {
        let flag = |key: &str| entry.get(key).and_then(Json::as_bool).unwrap_or(false);
        let text = entry.get("content").and_then(Json::as_str);
        Some(AddedToken {
            matched: SpecialToken {
                id: id(entry.get("id")?)?,
                text: text?.to_owned(),
                strips_left: flag("lstrip"),
                strips_right: flag("rstrip"),
                single_word: flag("single_word"),
            },
            special: flag("special"),
        })
    };
    let parsed: Option<Vec<AddedToken>> = entries.iter().map(parse).collect();
    parsed.ok_or_else(|| bad("an entry of added_tokens has no usable id and content"))
}

fn id(value: &Json) -> Option<u32> {
    value.as_u64().filter(|&id| id <= MAX_ID).and_then(|id| u32::try_from(id).ok())
}

/// Text and id of every piece of the model's own vocabulary: a map, or (Unigram) a list of
/// [text, score] pairs.
pub(crate) type Pieces = Vec<(String, u32)>;

fn pieces(file: &Json) -> Result<Pieces, TokenizerError> {
    let vocab = file.get("model").and_then(|model| model.get("vocab"));
    let parsed: Option<Pieces> = match vocab {
        Some(Json::Object(map)) => {
            map.iter().map(|(text, value)| Some((text.clone(), id(value)?))).collect()
        }
        Some(Json::Array(list)) => (0u32..)
            .zip(list)
            .map(|(id, pair)| Some((pair.get(0)?.as_str()?.to_owned(), id)))
            .collect(),
        _ => return Err(bad("model.vocab is missing")),
    };
    parsed.ok_or_else(|| bad("model.vocab holds something that is no token id"))
}

/// Refuses a post-processor that puts a book around every text, or says much for nothing: the
/// library takes its time for all of it.
fn check_processor(processor: Option<&Json>) -> Result<(), TokenizerError> {
    let (mut todo, mut count): (Vec<&Json>, usize) = (processor.into_iter().collect(), 0);
    while let Some(value) = todo.pop() {
        count += 1;
        match value {
            Json::Array(list) => todo.extend(list),
            Json::Object(map) => todo.extend(map.values()),
            _ => {}
        }
    }
    match count <= MAX_PROCESSOR {
        true => Ok(()),
        false => Err(bad(format!(
            "the post-processor consists of {count} values, at most {MAX_PROCESSOR} are allowed"
        ))),
    }
}

/// The ids a post-processor puts in front of a text and behind it.
fn frame(processor: Option<&Json>) -> (Vec<u32>, Vec<u32>) {
    let Some(processor) = processor else { return Default::default() };
    let kind = processor.get("type").and_then(Json::as_str).unwrap_or_default();
    let pair_id = |key: &str| processor.get(key).and_then(|pair| id(pair.get(1)?));
    match kind {
        "Sequence" => {
            let steps = processor.get("processors").and_then(Json::as_array);
            let framed = steps.into_iter().flatten().map(|step| frame(Some(step)));
            framed.fold(Default::default(), |(mut head, mut tail), (before, after)| {
                head.splice(0..0, before);
                tail.extend(after);
                (head, tail)
            })
        }
        "BertProcessing" | "RobertaProcessing" => {
            (pair_id("cls").into_iter().collect(), pair_id("sep").into_iter().collect())
        }
        "TemplateProcessing" => template_frame(processor),
        _ => Default::default(),
    }
}

/// The ids between the two texts of a pair that are not the end of the first alone.
fn between(processor: Option<&Json>) -> Vec<u32> {
    let Some(processor) = processor else { return Vec::new() };
    match processor.get("type").and_then(Json::as_str).unwrap_or_default() {
        "Sequence" => {
            let steps = processor.get("processors").and_then(Json::as_array);
            steps.into_iter().flatten().flat_map(|step| between(Some(step))).collect()
        }
        "RobertaProcessing" => {
            processor.get("sep").and_then(|pair| id(pair.get(1)?)).into_iter().collect()
        }
        "TemplateProcessing" => {
            let inner = template_ids(processor, "pair", 1);
            let ends = template_ids(processor, "single", 1);
            inner.strip_prefix(ends.as_slice()).unwrap_or_default().to_vec()
        }
        _ => Vec::new(),
    }
}

/// Whether the second text of a pair has a token type of its own.
fn typed(processor: Option<&Json>) -> bool {
    let Some(processor) = processor else { return false };
    let list = |key: &str| processor.get(key).and_then(Json::as_array).into_iter().flatten();
    match processor.get("type").and_then(Json::as_str).unwrap_or_default() {
        "Sequence" => list("processors").any(|step| typed(Some(step))),
        "BertProcessing" => true,
        "TemplateProcessing" => list("pair").any(|step| {
            let text = step.get("Sequence").filter(|s| s.get("id").is_some_and(|id| id == "B"));
            text.and_then(|text| text.get("type_id")?.as_u64()).is_some_and(|kind| kind > 0)
        }),
        _ => false,
    }
}

/// The special ids of a template that stand after `texts` texts and before the next.
fn template_ids(processor: &Json, template: &str, texts: usize) -> Vec<u32> {
    let (mut seen, mut ids) = (0, Vec::new());
    let steps = processor.get(template).and_then(Json::as_array);
    for step in steps.into_iter().flatten() {
        if step.get("Sequence").is_some() {
            seen += 1;
            continue;
        }
        let name = step.get("SpecialToken").and_then(|token| token.get("id")?.as_str());
        let token = name.and_then(|name| processor.get("special_tokens")?.get(name));
        let found = token.and_then(|token| token.get("ids")?.as_array());
        if seen == texts {
            ids.extend(found.into_iter().flatten().filter_map(id));
        }
    }
    ids
}

fn template_frame(processor: &Json) -> (Vec<u32>, Vec<u32>) {
    let (mut head, mut tail) = (Vec::new(), Vec::new());
    let mut in_head = true;
    let steps = processor.get("single").and_then(Json::as_array);
    for step in steps.into_iter().flatten() {
        if step.get("Sequence").is_some() {
            in_head = false;
            continue;
        }
        let name = step.get("SpecialToken").and_then(|token| token.get("id")?.as_str());
        let token = name.and_then(|name| processor.get("special_tokens")?.get(name));
        let ids = token.and_then(|token| token.get("ids")?.as_array());
        let ids = ids.into_iter().flatten().filter_map(id);
        if in_head { head.extend(ids) } else { tail.extend(ids) }
    }
    (head, tail)
}

/// Puts a token into a frame, or takes it out.
fn reconcile(frame: &mut Vec<u32>, token: u32, wanted: bool) {
    match wanted {
        true if !frame.contains(&token) => frame.push(token),
        true => {}
        false => frame.retain(|&id| id != token),
    }
}

/// A tokenizer that runs in the `tokenizers` library.
///
/// The library panics on some crafted files, when loading them or when encoding with them. The
/// panic is caught here, at its edge: it leaves nothing half done behind (both calls only read
/// what they are given), and it must fail one load or one request, not the server.
pub(crate) struct Library {
    first: tokenizers::Tokenizer,
    /// For text that does not start the input, where the file tells the two apart.
    later: Option<tokenizers::Tokenizer>,
    /// A single space parts words, so that a text may be cut in front of one.
    parts_at_spaces: bool,
}

/// Longest text given to the library at once, where it may be cut, bytes.
const CHUNK_BYTES: usize = 16 << 10;

impl Library {
    fn new(file: &Json) -> Result<Library, TokenizerError> {
        normalizer::check(file)?;
        let mut file = file.clone();
        if let Some(dropout) = file.get_mut("model").and_then(|model| model.get_mut("dropout")) {
            *dropout = Json::Null;
        }
        let mut later = file.clone();
        let differs = replace_first_scheme(&mut later);
        let normal = file.get("normalizer").is_none_or(works_by_word);
        let parts_at_spaces = normal && file.get("pre_tokenizer").is_some_and(parts_at_spaces);
        let later = if differs { Some(load(&later)?) } else { None };
        Ok(Library { first: load(&file)?, later, parts_at_spaces })
    }

    pub(crate) fn encode(
        &self,
        text: &str,
        starts_text: bool,
        out: &mut Ids<'_>,
    ) -> Result<(), TokenizerError> {
        let failed = |reason: String| TokenizerError::Encode { reason };
        let (mut rest, mut starts) = (text, starts_text);
        while !rest.is_empty() {
            let tokenizer = match (&self.later, starts) {
                (Some(later), false) => later,
                _ => &self.first,
            };
            let cut = if self.parts_at_spaces { space_before(rest) } else { rest.len() };
            let (chunk, after) = rest.split_at(cut);
            (rest, starts) = (after, false);
            let encoded = catch_unwind(AssertUnwindSafe(|| tokenizer.encode_fast(chunk, false)));
            let encoded = encoded.map_err(|_| failed("the tokenizer library panicked".into()))?;
            let encoded = encoded.map_err(|error| failed(error.to_string()))?;
            out.list.extend(encoded.get_ids());
            out.look()?;
        }
        Ok(())
    }
}

/// Whether a pre-tokenizer cuts at every space, whatever stands around it.
fn parts_at_spaces(step: &Json) -> bool {
    match step.get("type").and_then(Json::as_str).unwrap_or_default() {
        "BertPreTokenizer" | "Whitespace" | "WhitespaceSplit" => true,
        // Texts that go on after a space are those that begin with one.
        "Metaspace" => step.get("split").is_none_or(|on| on == true),
        "Sequence" => {
            let steps = step.get("pretokenizers").and_then(Json::as_array);
            steps.and_then(|steps| steps.first()).is_some_and(parts_at_spaces)
        }
        _ => false,
    }
}

/// Whether a normalizer changes a word whatever stands around it.
fn works_by_word(step: &Json) -> bool {
    match step.get("type").and_then(Json::as_str).unwrap_or_default() {
        "Sequence" => {
            let steps = step.get("normalizers").and_then(Json::as_array);
            steps.is_some_and(|steps| steps.iter().all(works_by_word))
        }
        "" => step.is_null(),
        "BertNormalizer" | "NFC" | "NFD" | "NFKC" | "NFKD" | "Lowercase" | "StripAccents"
        | "Nmt" | "Precompiled" => true,
        _ => false,
    }
}

/// Where a long text is cut: in front of a space with a letter or digit on either side.
fn space_before(text: &str) -> usize {
    let bytes = text.as_bytes();
    let is_cut = |at: &usize| match bytes.get(at - 1..at + 2) {
        Some(&[before, b' ', after]) => {
            before.is_ascii_alphanumeric() && after.is_ascii_alphanumeric()
        }
        _ => false,
    };
    match bytes.len() > CHUNK_BYTES {
        true => (1..CHUNK_BYTES).rev().find(is_cut).unwrap_or(bytes.len()),
        false => bytes.len(),
    }
}

fn load(file: &Json) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let bytes = serde_json::to_vec(file).map_err(|error| bad(error.to_string()))?;
    let loaded = catch_unwind(AssertUnwindSafe(|| {
        let mut tokenizer = tokenizers::Tokenizer::from_bytes(&bytes)?;
        tokenizer.with_truncation(None)?;
        tokenizer.with_padding(None);
        // Control tokens are found before: what reaches the library is plain text.
        tokenizer.set_encode_special_tokens(true);
        // A file may load and yet panic on the first text.
        tokenizer.encode_fast("a 1\u{e9}", false)?;
        Ok::<_, tokenizers::Error>(tokenizer)
    }));
    let loaded = loaded.map_err(|_| bad("the tokenizer library panicked on it"))?;
    loaded.map_err(|error| bad(error.to_string()))
}

/// Turns `"prepend_scheme": "first"` into `"never"` where text is split; false if there is none.
fn replace_first_scheme(file: &mut Json) -> bool {
    let mut found = false;
    let mut todo: Vec<&mut Json> = file.get_mut("pre_tokenizer").into_iter().collect();
    while let Some(step) = todo.pop() {
        if let Some(scheme) = step.get_mut("prepend_scheme").filter(|scheme| *scheme == "first") {
            *scheme = Json::from("never");
            found = true;
            continue;
        }
        let steps = step.get_mut("pretokenizers").and_then(Json::as_array_mut);
        todo.extend(steps.into_iter().flatten());
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoder::Reach;
    use serde_json::json;

    #[test]
    fn a_text_cut_at_spaces_has_the_tokens_of_the_whole() {
        let words = ["lorem", "ip", "##sum", "dolor", ",", "[UNK]", "7"];
        let vocab: Json = words.iter().zip(0..).map(|(w, id)| (w.to_string(), json!(id))).collect();
        let bert = json!({
            "normalizer": { "type": "BertNormalizer", "clean_text": true,
                "handle_chinese_chars": true, "strip_accents": null, "lowercase": true },
            "pre_tokenizer": { "type": "BertPreTokenizer" },
            "model": { "type": "WordPiece", "unk_token": "[UNK]",
                "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                "vocab": vocab },
        });
        let pieces = ["<unk>", "\u{2581}", "\u{2581}lorem", "ip", "sum", "\u{2581}dolor", ","];
        let pieces: Vec<Json> = pieces.iter().map(|p| json!([p, -(p.len() as f64)])).collect();
        let metaspace = |scheme: &str| {
            json!({
                "pre_tokenizer": { "type": "Metaspace", "replacement": "\u{2581}",
                    "prepend_scheme": scheme, "split": true },
                "model": { "type": "Unigram", "unk_id": 0, "vocab": pieces },
            })
        };
        let text = "Lorem ipsum, dolor\n  7 éx \u{3000}lorem lorem ".repeat(2000);
        for file in [bert, metaspace("always"), metaspace("first"), metaspace("never")] {
            let mut library = Library::new(&file).expect("a tokenizer");
            let mut encode = |cuts: bool, starts: bool| {
                library.parts_at_spaces &= cuts;
                let mut ids = Ids::new(Reach::ALL);
                library.encode(&text, starts, &mut ids).expect("encodes");
                ids.list
            };
            let cut = [encode(true, true), encode(true, false)];
            assert!(cut[0].len() > 10_000);
            assert_eq!(cut, [encode(false, true), encode(false, false)], "{file}");
        }
    }

    #[test]
    fn only_pipelines_that_work_by_words_are_cut() {
        let split = json!({ "type": "Metaspace", "replacement": "\u{2581}", "split": false });
        assert!(!parts_at_spaces(&split) && !parts_at_spaces(&json!({ "type": "Punctuation" })));
        for (normalizer, expect) in [
            (Json::Null, true),
            (json!({ "type": "Prepend", "prepend": "\u{2581}" }), false),
            (json!({ "type": "Strip", "strip_left": true, "strip_right": true }), false),
            (json!({ "type": "Sequence", "normalizers": [{ "type": "NFKC" }] }), true),
        ] {
            assert_eq!(works_by_word(&normalizer), expect, "{normalizer}");
        }
    }
}
