//! The tokens that end an answer, by name: metadata often lists only one of several.

/// Texts of control tokens that end a turn in some family.
pub(crate) const TURN_ENDS: &[&str] = &[
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|return|>",
    "<|call|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|end_of_sentence|>",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
    "<EOT>",
];

/// Ids of the control tokens that end a turn.
///
/// Where a vocabulary has `<|return|>` and `<|call|>` (the harmony format), `<|end|>` only ends a
/// message of an answer that goes on.
pub(crate) fn among<'t>(control: impl Iterator<Item = (u32, &'t str)>) -> Vec<u32> {
    let mut found: Vec<(u32, &str)> =
        control.filter(|(_, text)| TURN_ENDS.contains(text)).collect();
    let has = |name: &str| found.iter().any(|(_, text)| *text == name);
    if has("<|return|>") && has("<|call|>") {
        found.retain(|(_, text)| *text != "<|end|>");
    }
    found.into_iter().map(|(id, _)| id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_ends() {
        let cases: &[(&[&str], &[u32])] = &[
            (&["<s>", "<|im_end|>", "<|endoftext|>"], &[1, 2]),
            (&["<|end|>", "<|user|>"], &[0]),
            (&["<|end|>", "<|return|>", "<|call|>"], &[1, 2]),
        ];
        for (names, expect) in cases {
            assert_eq!(among((0..).zip(names.iter().copied())), *expect);
        }
    }
}
