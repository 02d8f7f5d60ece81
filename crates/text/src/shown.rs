//! Texts out of model files as they may go to a terminal.

/// Longest text that is shown, in characters.
const MAX: usize = 500;

/// The text on one line, without control characters, which could steer a terminal, and cut where
/// it is too long. What would not be seen is in quotes.
pub(crate) fn shown(text: &str) -> String {
    if text.trim().is_empty() {
        return quoted(text);
    }
    let mut chars = text.trim().chars();
    let plain = |c: char| match c {
        '\n' | '\r' | '\t' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    let mut shown: String = chars.by_ref().take(MAX).map(plain).collect();
    if chars.next().is_some() {
        shown.push('…');
    }
    shown
}

/// A name out of a file, in quotes, on one line, and cut where it is too long.
pub(crate) fn quoted(name: &str) -> String {
    const MAX: usize = 80;
    match name.char_indices().nth(MAX) {
        Some((end, _)) => format!("{:?}…", name.get(..end).unwrap_or_default()),
        None => format!("{name:?}"),
    }
}

/// A reason on one line, cut where it is too long.
pub(crate) fn line(reason: &str) -> String {
    const MAX: usize = 300;
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    reason.chars().take(MAX).map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_replaced() {
        let cases = [
            ("plain é 猫\nnext\n", "plain é 猫 next"),
            ("\u{1b}[31mred\u{7}\r\u{9b}2J", "\u{fffd}[31mred\u{fffd} \u{fffd}2J"),
            ("", "\"\""),
            (" \n", "\" \\n\""),
        ];
        for (text, expect) in cases {
            assert_eq!(shown(text), expect);
        }
        assert_eq!(shown(&"猫".repeat(MAX)), "猫".repeat(MAX));
        assert_eq!(shown(&"猫".repeat(MAX + 1)), "猫".repeat(MAX) + "…");
    }
}
