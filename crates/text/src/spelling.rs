//! How the pieces of a `tokenizer.json` spell text.

use serde_json::Value as Json;

use crate::bpe::SPACE_MARK;
use crate::byte_level::ByteDecoder;
use crate::gguf_vocab::byte_of;
use crate::hf_json::Pieces;

/// How the pieces of a vocabulary spell text.
pub(crate) struct Spelling {
    kind: SpellingKind,
    /// Pieces `<0x0A>` stand for bytes.
    byte_pieces: bool,
    pub(crate) strips_lead: bool,
}

enum SpellingKind {
    ByteLevel,
    /// A space is `▁`.
    SpaceMark,
    /// A piece that starts with this text continues a word; the others start one.
    Continuation(String),
    /// A piece that ends with this text ends a word.
    WordEnd(String),
}

impl Spelling {
    /// The text of a piece follows the vocabulary: what writes a text in its letters (the
    /// normaliser, the pre-tokenizer, the model) says how to read it back. Only where they are
    /// silent the decoder is asked, which files have wrong or not at all, then the letters.
    pub(crate) fn of(file: &Json, pieces: &Pieces) -> Spelling {
        let writes = [steps(file, "normalizer"), steps(file, "pre_tokenizer")].concat();
        let reads = steps(file, "decoder");
        let model = file.get("model").unwrap_or(&Json::Null);
        let kind = written(&writes, model)
            .or_else(|| decoded(&reads))
            .unwrap_or_else(|| of_letters(pieces));
        let falls_back = model.get("byte_fallback").is_some_and(|on| on == true);
        let decodes_bytes = find(&reads, "ByteFallback").is_some();
        let strips = match (&kind, reads.is_empty()) {
            (SpellingKind::Continuation(_), _) => true,
            // A space in front is no invention where the vocabulary has letters for bytes.
            (SpellingKind::ByteLevel, _) if find(&reads, "ByteLevel").is_none() => false,
            (SpellingKind::SpaceMark, true) => prefixes(&writes),
            _ => strips_start(&reads) || prefixes(&reads),
        };
        Spelling {
            byte_pieces: falls_back || decodes_bytes && !matches!(kind, SpellingKind::ByteLevel),
            strips_lead: strips,
            kind,
        }
    }

    /// The bytes a piece stands for.
    pub(crate) fn bytes(&self, piece: &str, decoder: &ByteDecoder) -> Vec<u8> {
        if let Some(byte) = byte_of(piece).filter(|_| self.byte_pieces) {
            return vec![byte];
        }
        let text = match &self.kind {
            SpellingKind::ByteLevel => {
                return decoder.decode(piece).unwrap_or_else(|| piece.as_bytes().to_vec());
            }
            SpellingKind::SpaceMark => piece.replace(SPACE_MARK, " "),
            SpellingKind::Continuation(prefix) => match piece.strip_prefix(prefix.as_str()) {
                Some(rest) => rest.to_owned(),
                None => format!(" {piece}"),
            },
            SpellingKind::WordEnd(suffix) => match piece.strip_suffix(suffix.as_str()) {
                Some(word) => format!("{word} "),
                None => piece.to_owned(),
            },
        };
        text.into_bytes()
    }
}

/// A step of the file and those inside it, in order.
fn steps<'f>(file: &'f Json, part: &str) -> Vec<&'f Json> {
    let mut steps = Vec::new();
    let mut todo: Vec<&Json> = file.get(part).filter(|step| !step.is_null()).into_iter().collect();
    while let Some(step) = todo.pop() {
        steps.push(step);
        let inside = ["normalizers", "pretokenizers", "decoders"].map(|key| step.get(key));
        let inside = inside.into_iter().flatten().filter_map(Json::as_array).flatten();
        todo.extend(inside);
    }
    steps
}

fn find<'f>(steps: &[&'f Json], kind: &str) -> Option<&'f Json> {
    steps.iter().find(|step| step.get("type").is_some_and(|found| found == kind)).copied()
}

fn text(step: &Json, key: &str) -> Option<String> {
    step.get(key).and_then(Json::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
}

/// The spelling that the way from text to pieces gives.
fn written(steps: &[&Json], model: &Json) -> Option<SpellingKind> {
    if let Some(suffix) = text(model, "end_of_word_suffix") {
        return Some(SpellingKind::WordEnd(suffix));
    }
    if find(steps, "ByteLevel").is_some() {
        return Some(SpellingKind::ByteLevel);
    }
    let marks = |step: &&Json| {
        let is = |kind: &str| step.get("type").is_some_and(|found| found == kind);
        let content = step.get("content").and_then(Json::as_str);
        is("Metaspace") || is("Replace") && content.is_some_and(|text| text.contains(SPACE_MARK))
    };
    if steps.iter().any(marks) {
        return Some(SpellingKind::SpaceMark);
    }
    let is_wordpiece = model.get("type").is_some_and(|kind| kind == "WordPiece");
    let prefix = text(model, "continuing_subword_prefix").filter(|_| is_wordpiece);
    prefix.map(SpellingKind::Continuation)
}

/// The spelling that the decoder expects.
fn decoded(steps: &[&Json]) -> Option<SpellingKind> {
    let text = |step: &Json, key: &str, default: &str| {
        text(step, key).unwrap_or_else(|| default.to_owned())
    };
    if find(steps, "ByteLevel").is_some() {
        return Some(SpellingKind::ByteLevel);
    }
    if let Some(step) = find(steps, "WordPiece") {
        return Some(SpellingKind::Continuation(text(step, "prefix", "##")));
    }
    if let Some(step) = find(steps, "BPEDecoder") {
        return Some(SpellingKind::WordEnd(text(step, "suffix", "</w>")));
    }
    (!steps.is_empty()).then_some(SpellingKind::SpaceMark)
}

/// The spelling that the pieces themselves show: a letter for each of the 256 bytes.
fn of_letters(pieces: &Pieces) -> SpellingKind {
    let mut seen = [false; 256];
    let decoder = ByteDecoder::new();
    for (piece, _) in pieces.iter().filter(|(piece, _)| piece.chars().nth(1).is_none()) {
        if let Some([byte]) = decoder.decode(piece).as_deref() {
            seen[usize::from(*byte)] = true;
        }
    }
    match seen.iter().all(|seen| *seen) {
        true => SpellingKind::ByteLevel,
        false => SpellingKind::SpaceMark,
    }
}

/// Whether a decoder takes something from the start of the text.
fn strips_start(steps: &[&Json]) -> bool {
    let count = find(steps, "Strip").and_then(|step| step.get("start")?.as_u64());
    count.is_some_and(|count| count > 0)
}

/// Whether a text gets a space in front.
fn prefixes(steps: &[&Json]) -> bool {
    let metaspace = find(steps, "Metaspace").is_some_and(|step| {
        let never = step.get("prepend_scheme").is_some_and(|scheme| scheme == "never");
        let off = step.get("add_prefix_space").is_some_and(|on| on == false);
        !never && !off
    });
    metaspace || find(steps, "Prepend").is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::byte_level::char_of_byte;

    #[test]
    fn pieces_are_read_as_they_were_written() {
        let level = json!({"type": "ByteLevel"});
        let mark = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"});
        let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        let sentencepiece = json!({"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1},
        ]});
        let prepends = json!({"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, &replace,
        ]});
        let split = json!({"type": "Sequence", "pretokenizers": [{"type": "Digits"}, &level]});
        let bpe = |more: Json| {
            let mut model = json!({"type": "BPE"});
            let more = more.as_object().cloned().unwrap_or_default();
            model.as_object_mut().unwrap().extend(more);
            model
        };
        let (plain, fallback) = (bpe(json!({})), bpe(json!({"byte_fallback": true})));
        let wordpiece = json!({"type": "WordPiece", "continuing_subword_prefix": "##"});
        // Normaliser, pre-tokenizer, model, decoder; a piece and its bytes; whether a lead is cut.
        let cases = [
            (json!(null), &level, &plain, &sentencepiece, "Ġa", " a", false),
            (json!(null), &split, &plain, &sentencepiece, "Ċ", "\n", false),
            (json!(null), &level, &plain, &json!(null), "Ġa", " a", false),
            (json!(null), &level, &plain, &mark, "Ġa", " a", false),
            (level.clone(), &json!(null), &plain, &json!(null), "Ġa", " a", false),
            (json!(null), &level, &plain, &sentencepiece, "<0x0A>", "<0x0A>", false),
            (prepends.clone(), &json!(null), &fallback, &sentencepiece, "▁a", " a", true),
            (prepends.clone(), &json!(null), &fallback, &json!(null), "<0x0A>", "\n", true),
            (replace, &json!(null), &fallback, &json!(null), "▁a", " a", false),
            (json!(null), &mark, &plain, &level, "▁é", " é", false),
            (json!(null), &mark, &plain, &json!(null), "▁a", " a", true),
            (json!(null), &json!(null), &wordpiece, &json!(null), "##a", "a", true),
            (json!(null), &json!(null), &wordpiece, &json!(null), "a", " a", true),
            (json!(null), &json!(null), &plain, &level, "Ġa", " a", false),
            (json!(null), &json!(null), &plain, &json!(null), "▁a", " a", false),
        ];
        for (normalizer, pre_tokenizer, model, decoder, piece, bytes, strips) in cases {
            let file = json!({"normalizer": normalizer, "pre_tokenizer": pre_tokenizer,
                              "model": model, "decoder": decoder});
            let spelling = Spelling::of(&file, &Vec::new());
            let found = spelling.bytes(piece, &ByteDecoder::new());
            assert_eq!(String::from_utf8_lossy(&found), bytes, "{file}");
            assert_eq!(spelling.strips_lead, strips, "{file}");
        }
        let letters = (0..=255u8).map(char_of_byte).map(String::from).zip(0..).collect();
        let found = Spelling::of(&json!({"model": plain}), &letters);
        assert_eq!(found.bytes("Ġa", &ByteDecoder::new()), b" a");
    }
}
