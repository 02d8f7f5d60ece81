//! Constraints on any bytes: refused or compiled within small limits, and never a panic; what a
//! mask has is accepted, and a compact document that ends is JSON.
#![no_main]

use std::sync::{Arc, LazyLock};

use tokenmill_grammar::{Bounds, Constraint, Settings, Vocabulary, compile};

static BYTES: LazyLock<Arc<Vocabulary>> = LazyLock::new(|| {
    let tokens = (0..=255u8).map(|b| vec![b]).chain([b"<|end|>".to_vec()]);
    Arc::new(Vocabulary::new(tokens, &[256], &[256]).expect("a vocabulary of bytes"))
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    let constraint = match kind % 4 {
        0 => match serde_json::from_str(text) {
            Ok(schema) => Constraint::JsonSchema(schema),
            Err(_) => return,
        },
        1 => Constraint::Regex(text.to_owned()),
        2 => Constraint::Lark(text.to_owned()),
        _ => Constraint::Gbnf(text.to_owned()),
    };
    let bounds = Bounds {
        source_bytes: 4096,
        schemas: 200,
        values: 50,
        pattern_bytes: 200,
        patterns: 8,
        repeat: 50,
        compile_fuel: 50_000,
        mask_fuel: 20_000,
        mask_items: 5000,
        states: 2000,
        symbols: 5000,
        ..Bounds::default()
    };
    let settings = Settings { bounds, ..Settings::default() };
    let Ok(grammar) = compile(&constraint, &BYTES, &settings) else { return };
    let (mut matcher, mut bits) = (grammar.start(), vec![0u32; BYTES.words()]);
    let mut answer = Vec::new();
    for step in 0..24usize {
        if matcher.is_done() || matcher.mask(&mut bits).is_err() {
            break;
        }
        let in_mask = (0..256u32).filter(|id| bits[*id as usize / 32] >> (id % 32) & 1 == 1);
        let ids: Vec<u32> = in_mask.collect();
        let Some(&id) = ids.get((bytes[step % bytes.len()] as usize * 7 + step) % ids.len().max(1))
        else {
            break;
        };
        match matcher.accept(id) {
            Ok(()) => answer.push(id as u8),
            Err(tokenmill_grammar::Dead::NotAllowed(id)) => panic!("{id} of the mask"),
            Err(_) => return,
        }
    }
    if matches!(constraint, Constraint::JsonSchema(_)) && matcher.is_done() {
        let parsed: Result<serde_json::Value, _> = serde_json::from_slice(&answer);
        assert!(parsed.is_ok(), "{:?}", String::from_utf8_lossy(&answer));
    }
});
