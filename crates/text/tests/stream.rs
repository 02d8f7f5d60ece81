//! A stream gives the whole decode in pieces, whatever the tokens and stop strings.

use proptest::prelude::*;
use tokenmill_text::{GgufVocab, Lead, TextStream, Tokenizer};

/// A vocabulary whose tokens split characters and stop strings in every way: single bytes, parts
/// of characters, invalid bytes, overlapping words, a control token.
fn tokenizer() -> Tokenizer {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    let mut token_types = vec![2, 3, 3];
    tokens.extend((0..=255u8).map(|byte| format!("<0x{byte:02X}>")));
    token_types.extend([6; 256]);
    for word in ["▁", "▁a", "ab", "b", "aab", "STOP", "ST", "OP", "é", "日本", "🙂", "\n", "▁▁"]
    {
        tokens.push(word.to_owned());
        token_types.push(1);
    }
    let scores = (0..tokens.len()).map(|id| -(id as f32)).collect();
    let vocab = GgufVocab {
        model: "llama".to_owned(),
        tokens,
        scores,
        token_types,
        bos: Some(1),
        eos: Some(2),
        ..GgufVocab::default()
    };
    Tokenizer::from_gguf(vocab).expect("a usable vocabulary")
}

/// Every token, bytes of multi-byte characters and stop strings more often.
fn ids() -> impl Strategy<Value = Vec<u32>> {
    let byte = |byte: u8| 3 + u32::from(byte);
    let id = prop_oneof![
        3 => 259u32..272,
        1 => 0u32..272,
        2 => prop::sample::select("é日🙂STOPab ".bytes().map(byte).collect::<Vec<_>>()),
    ];
    prop::collection::vec(id, 0..40)
}

fn stops() -> impl Strategy<Value = Vec<String>> {
    let stop = prop::sample::select(vec!["STOP", "ab", "aab", "abS", "日", "🙂", "\n", "", "zz"]);
    prop::collection::vec(stop.prop_map(str::to_owned), 0..3)
}

/// The definition: the text up to the stop string that is complete first, and which one it is.
fn cut(text: &str, stops: &[String]) -> (String, Option<usize>) {
    for end in text.char_indices().map(|(at, c)| at + c.len_utf8()) {
        let ends = |(_, stop): &(usize, &String)| !stop.is_empty() && text[..end].ends_with(*stop);
        let found = stops.iter().enumerate().filter(ends);
        if let Some((index, stop)) = found.max_by_key(|(i, stop)| (stop.len(), usize::MAX - i)) {
            return (text[..end - stop.len()].to_owned(), Some(index));
        }
    }
    (text.to_owned(), None)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn pieces_make_the_whole(ids in ids(), stops in stops()) {
        let tokenizer = tokenizer();
        let mut stream = TextStream::new(&tokenizer, &stops, Lead::Strip);
        let mut text = String::new();
        let mut stop = None;
        for &id in &ids {
            let piece = stream.push(&tokenizer, id);
            text.push_str(&piece.text);
            stop = piece.stop;
            if stop.is_some() {
                break;
            }
        }
        let last = stream.finish();
        text.push_str(&last.text);
        stop = stop.or(last.stop);
        prop_assert_eq!((text, stop), cut(&tokenizer.decode(&ids), &stops));
    }
}

#[test]
fn text_comes_as_soon_as_it_is_certain() {
    let tokenizer = tokenizer();
    let id = |text: &str| tokenizer.id_of(text).expect("a token");
    let stops = ["STOP".to_owned()];
    let mut stream = TextStream::new(&tokenizer, &stops, Lead::Keep);
    let steps = [
        (id(" a"), " a", None),
        (id("ST"), "", None),
        (id("b"), "STb", None),
        (3 + 0xF0, "", None),
        (3 + 0x9F, "", None),
        (id("b"), "\u{FFFD}b", None),
        (2, "", None),
        (id("ST"), "", None),
        (id("OP"), "", Some(0)),
        (id("b"), "", Some(0)),
    ];
    for (id, text, stop) in steps {
        let piece = stream.push(&tokenizer, id);
        assert_eq!((piece.text.as_str(), piece.stop), (text, stop), "token {id}");
    }
    assert_eq!(stream.finish().text, "");
}
