//! Recognises byte-level BPE in a `tokenizer.json` that this crate can run by itself.

use serde_json::Value as Json;

use crate::bpe::{ByteBpe, FastMap, MergeTable};
use crate::byte_level::ByteDecoder;
use crate::hf_json::{Pieces, bad};
use crate::pretokenize::{GPT2, PreTokenizer};
use crate::tokenizer::TokenizerError;

/// The byte-level BPE a file describes; `None` if it is something else, or has a feature that is
/// left to the library.
pub(crate) fn recognise(file: &Json, pieces: &Pieces) -> Result<Option<ByteBpe>, TokenizerError> {
    let Some(model) = file.get("model").filter(|model| is_plain_bpe(model)) else {
        return Ok(None);
    };
    let Some(composes) = composes(file.get("normalizer")) else { return Ok(None) };
    let Some(patterns) = patterns(file.get("pre_tokenizer")) else { return Ok(None) };
    let whole_words = model.get("ignore_merges").is_some_and(|on| on == true);
    let Some(pre) = PreTokenizer::from_patterns(&patterns, whole_words, composes) else {
        return Ok(None);
    };

    let ids: FastMap<&str, u32> = pieces.iter().map(|(text, id)| (text.as_str(), *id)).collect();
    let mut words = FastMap::default();
    if whole_words {
        let decoder = ByteDecoder::new();
        let decoded = pieces.iter().filter_map(|(text, id)| Some((decoder.decode(text)?, *id)));
        words = decoded.map(|(bytes, id)| (bytes.into_boxed_slice(), id)).collect();
    }
    let unknown = model.get("unk_token").and_then(|unk| ids.get(unk.as_str()?).copied());
    Ok(Some(ByteBpe {
        pre,
        merges: merges(model, &ids)?,
        byte_ids: ByteBpe::byte_ids(|text| ids.get(text).copied()),
        whole_words: words,
        unknown,
    }))
}

fn is_plain_bpe(model: &Json) -> bool {
    // Files of the first years do not name their model's type.
    let kind = model.get("type").and_then(Json::as_str);
    let is_bpe = kind == Some("BPE") || kind.is_none() && model.get("merges").is_some();
    let unset = |key: &str| match model.get(key) {
        None | Some(Json::Null | Json::Bool(false)) => true,
        Some(value) => value == "" || value == 0.0,
    };
    // Dropout belongs to training: texts are cut without it.
    let options = ["continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"];
    is_bpe && options.into_iter().all(unset)
}

fn kind(step: &Json) -> &str {
    step.get("type").and_then(Json::as_str).unwrap_or_default()
}

/// Whether text is normalised to NFC; `None` for other normalisations.
fn composes(normalizer: Option<&Json>) -> Option<bool> {
    let Some(normalizer) = normalizer.filter(|n| !n.is_null()) else { return Some(false) };
    match kind(normalizer) {
        "NFC" => Some(true),
        "Sequence" => {
            let steps = normalizer.get("normalizers")?.as_array()?;
            steps.iter().all(|step| kind(step) == "NFC").then_some(!steps.is_empty())
        }
        _ => None,
    }
}

/// One pattern per stage, for a chain of cuts that ends in the byte-level step.
fn patterns(pre_tokenizer: Option<&Json>) -> Option<Vec<String>> {
    let pre_tokenizer = pre_tokenizer?;
    let steps = match kind(pre_tokenizer) {
        "Sequence" => pre_tokenizer.get("pretokenizers")?.as_array()?.as_slice(),
        _ => std::slice::from_ref(pre_tokenizer),
    };
    let (last, cuts) = steps.split_last()?;
    if kind(last) != "ByteLevel" || last.get("add_prefix_space").is_some_and(|on| on == true) {
        return None;
    }
    let mut patterns = cuts.iter().map(cut).collect::<Option<Vec<String>>>()?;
    // Absent means on, as the library reads it.
    if last.get("use_regex").is_none_or(|on| on == true) {
        patterns.push(format!(r"{GPT2}|\s+(?!\S)|\s+"));
    }
    Some(patterns)
}

fn cut(step: &Json) -> Option<String> {
    match kind(step) {
        "Split" => {
            let inverted = step.get("invert").is_some_and(|on| on == true);
            let behavior = step.get("behavior").and_then(Json::as_str)?;
            let pattern = step.get("pattern")?;
            let pattern = match pattern.get("Regex").and_then(Json::as_str) {
                Some(pattern) => pattern.to_owned(),
                None => escaped(pattern.get("String")?.as_str()?),
            };
            // Removing what is *not* matched is isolating, for a pattern that matches everything.
            let covers = pattern.ends_with(r"|\s+(?!\S)|\s+");
            match (behavior, inverted) {
                ("Isolated", false) => Some(pattern),
                ("Removed", true) if covers => Some(pattern),
                _ => None,
            }
        }
        "Digits" => match step.get("individual_digits").and_then(Json::as_bool)? {
            true => Some(r"\p{N}".to_owned()),
            false => Some(r"\p{N}+".to_owned()),
        },
        _ => None,
    }
}

/// A pattern that matches the text literally.
fn escaped(text: &str) -> String {
    text.chars().map(|c| format!(r"\x{{{:X}}}", c as u32)).collect()
}

fn merges(model: &Json, ids: &FastMap<&str, u32>) -> Result<MergeTable, TokenizerError> {
    let list = model.get("merges").and_then(Json::as_array).ok_or_else(|| bad("no merges"))?;
    let mut table = MergeTable::default();
    let mut joined = String::new();
    for (rank, merge) in (0u32..).zip(list) {
        let bad = || TokenizerError::BadMerge { index: rank, text: merge.to_string() };
        // "left right", or ["left", "right"] in newer files.
        let (left, right) = match merge {
            Json::String(text) => text.split_once(' ').ok_or_else(bad)?,
            pair => {
                let side = |i: usize| pair.get(i).and_then(Json::as_str).ok_or_else(bad);
                (side(0)?, side(1)?)
            }
        };
        joined.clear();
        joined.push_str(left);
        joined.push_str(right);
        let id = |text: &str| ids.get(text).copied().ok_or_else(bad);
        // The library lets a later duplicate win.
        table.insert((id(left)?, id(right)?), (rank, id(&joined)?));
    }
    Ok(table)
}
