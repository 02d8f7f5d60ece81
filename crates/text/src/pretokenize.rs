//! Pre-tokenizers: how text is cut into words before merging, one table row per kind.

use regex_automata::meta;

/// One way of cutting text into words.
///
/// Each stage runs on every piece the stage before left; a match is a piece of its own, and so is
/// the text between two matches. The patterns are those of the families' published tokenizer
/// files.
struct Kind {
    /// Values of `tokenizer.ggml.pre` that mean this kind.
    names: &'static [&'static str],
    stages: &'static [Stage],
    /// A word that is in the vocabulary is taken whole, without merging.
    whole_words: bool,
}

/// One cut.
enum Stage {
    /// Isolate every match.
    Isolate(&'static str),
    /// Isolate every match; then runs of white space, which leave their last character to the
    /// word that follows them. This is `…|\s+(?!\S)|\s+` without a look-ahead, so that matching
    /// takes linear time.
    IsolateThenSpaces(&'static str),
    /// Cut every match, a number, into threes from its right end and isolate them. This is
    /// `\d{1,3}(?=(?:\d{3})*…)` without a look-ahead.
    Thousands(&'static str),
}

use Stage::{Isolate, IsolateThenSpaces, Thousands};

pub(crate) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+";
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
);
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
);
const QWEN35: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
);
const O200K: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
);
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
);
const DEEPSEEK3: &str = concat!(
    r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*",
    r"|\s*[\r\n]+"
);
/// Cased letters of the alphabets the first DeepSeek tokenizer was trained on.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[",
    r"A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}",
    r"\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}",
    r"\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}",
    r"\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}",
    r"\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}",
    r"\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}",
    r"\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}",
    r"\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}",
    r"\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}",
    r"\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}",
    r"\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}",
    r"\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}",
    r"\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}",
    r"\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}",
    r"\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}",
    r"\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}",
    r"]+"
);
const CJK: &str = "[一-龥ࠀ-一가-\u{D7FF}]+";
const HAN_KANA: &str = "[一-龥぀-ゟ゠-ヿ]+";

/// Every kind this crate knows.
const KINDS: &[Kind] = &[
    Kind {
        // Files written before the key existed.
        names: &["default"],
        stages: &[
            Isolate(r"[\p{P}\$\+<=>\^~\|]+"),
            IsolateThenSpaces(GPT2),
            Isolate(r"\p{N}+"),
            Isolate("[0-9][0-9][0-9]"),
        ],
        whole_words: false,
    },
    Kind {
        names: &[
            "gpt-2",
            "gpt2",
            "phi-2",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "exaone4",
            "granite-docling",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
        ],
        stages: &[IsolateThenSpaces(GPT2)],
        whole_words: false,
    },
    Kind {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        stages: &[Isolate(r"\p{N}"), IsolateThenSpaces(GPT2)],
        whole_words: false,
    },
    Kind {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
            "glm4",
            "glm5",
        ],
        stages: &[IsolateThenSpaces(LLAMA3)],
        whole_words: true,
    },
    Kind {
        names: &["dbrx", "smaug-bpe", "chatglm-bpe"],
        stages: &[IsolateThenSpaces(LLAMA3)],
        whole_words: false,
    },
    Kind {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "stablelm2",
            "hunyuan",
            "megrez",
            "solar-open",
            "grok-2",
            "kormo",
            "f2llmv2",
        ],
        stages: &[IsolateThenSpaces(QWEN2)],
        whole_words: false,
    },
    Kind { names: &["qwen35"], stages: &[IsolateThenSpaces(QWEN35)], whole_words: false },
    Kind {
        names: &["gpt-4o", "o200k", "llama4", "kanana2", "minimax-m2", "talkie"],
        stages: &[IsolateThenSpaces(O200K)],
        whole_words: false,
    },
    Kind {
        names: &["tiny_aya", "cohere2moe"],
        stages: &[Thousands(r"\d+\b"), IsolateThenSpaces(O200K)],
        whole_words: false,
    },
    Kind {
        // Words end at numbers only: tokens of this family span several words.
        names: &["superbpe"],
        stages: &[Isolate(r"\p{N}+"), Thousands(r"\d+")],
        whole_words: false,
    },
    Kind {
        names: &["granite-embed-multi-97m"],
        stages: &[IsolateThenSpaces(O200K)],
        whole_words: true,
    },
    Kind { names: &["tekken"], stages: &[IsolateThenSpaces(TEKKEN)], whole_words: true },
    Kind {
        names: &["deepseek-llm"],
        stages: &[
            Isolate(r"[\r\n]"),
            Isolate(DEEPSEEK_LETTERS),
            Isolate("\\s?[!-/:-~！-／：-～‘-‟\u{3000}-。]+"),
            Isolate(r"\s+$"),
            Isolate(CJK),
            Isolate(r"\p{N}+"),
        ],
        whole_words: false,
    },
    Kind {
        names: &["deepseek-coder"],
        stages: &[
            Isolate(r"[\r\n]"),
            Isolate(r"\s?\p{L}+"),
            Isolate(r"\s?\p{P}+"),
            Isolate(CJK),
            Isolate(r"\p{N}"),
        ],
        whole_words: false,
    },
    Kind {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        stages: &[Isolate(r"\p{N}{1,3}"), Isolate(HAN_KANA), IsolateThenSpaces(DEEPSEEK3)],
        whole_words: false,
    },
    Kind {
        names: &["falcon"],
        stages: &[
            Isolate(r"[\p{P}\$\+<=>\^~\|`]+"),
            IsolateThenSpaces(GPT2),
            Isolate("[0-9][0-9][0-9]"),
        ],
        whole_words: false,
    },
    Kind {
        names: &["bloom", "gpt3-finnish", "poro-chat"],
        stages: &[Isolate(r" ?[^(\s|.,!?…。，、।۔،)]+")],
        whole_words: false,
    },
    Kind {
        names: &["viking"],
        stages: &[Isolate(r" ?[^(\s|.,!?…。，、।۔،)]+"), Isolate(r"\p{N}")],
        whole_words: false,
    },
    Kind {
        names: &["seed-coder"],
        stages: &[IsolateThenSpaces(concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
            r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+"
        ))],
        whole_words: false,
    },
    Kind {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        stages: &[IsolateThenSpaces(concat!(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]"
        ))],
        whole_words: false,
    },
    Kind {
        names: &["exaone-moe"],
        stages: &[IsolateThenSpaces(concat!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
            r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]"
        ))],
        whole_words: false,
    },
    Kind {
        names: &["ufakzeka"],
        stages: &[IsolateThenSpaces(
            r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
        )],
        whole_words: false,
    },
    Kind {
        names: &["laguna"],
        stages: &[Isolate(r"\n+"), IsolateThenSpaces(QWEN2)],
        whole_words: false,
    },
    Kind {
        names: &["spark2_5"],
        stages: &[
            Isolate(r"\p{N}{1,3}"),
            Isolate(HAN_KANA),
            IsolateThenSpaces(concat!(
                r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+",
                r"| ?[\p{P}\p{S}]+|[\r\n]"
            )),
            Isolate(r"\p{N}"),
        ],
        whole_words: false,
    },
    Kind {
        names: &["youtu"],
        stages: &[
            Isolate(concat!(
                "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|",
                "[一-龥\u{3040}-ゟ゠-ヿ]+"
            )),
            IsolateThenSpaces(concat!(
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*",
                r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+",
                r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
            )),
        ],
        whole_words: true,
    },
    Kind {
        names: &["kimi-k2"],
        stages: &[IsolateThenSpaces(concat!(
            r"\p{Han}+",
            r"|[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]*",
            r"[[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"|[^\r\n\p{L}\p{N}]?[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]+",
            r"[[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        ))],
        whole_words: false,
    },
    Kind {
        names: &["chameleon"],
        stages: &[
            Isolate("<sentinel:[0-9]+>"),
            Isolate("IMGIMG[A-I]{1,4}Z"),
            Isolate(r"[\t\n]|    |  "),
            Isolate(r"\p{N}"),
            Isolate(r"[\p{P}!-/:-@\[-`{-~]"),
            IsolateThenSpaces(GPT2),
        ],
        whole_words: false,
    },
    Kind {
        names: &["minicpm5"],
        stages: &[
            Isolate(r"\p{N}{1,3}"),
            IsolateThenSpaces(concat!(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+",
                r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
            )),
        ],
        whole_words: true,
    },
];

/// Every name the table knows, in table order.
pub(crate) fn known_names() -> impl Iterator<Item = &'static str> {
    KINDS.iter().flat_map(|kind| kind.names.iter().copied())
}

/// Kinds whose models want a BOS where the metadata does not say.
const WANTS_BOS: &[&str] = &[
    "llama-bpe",
    "llama3",
    "llama-v3",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "jina-v5-nano",
    "tekken",
    "chameleon",
];

/// Kinds whose tokenizer files normalise text to NFC first.
const COMPOSED: &[&str] = &["qwen2", "command-r", "olmo", "mpt", "modern-bert"];

/// A compiled pre-tokenizer.
pub(crate) struct PreTokenizer {
    stages: Vec<Cutter>,
    /// A word that is in the vocabulary is taken whole, without merging.
    pub(crate) whole_words: bool,
    /// Text is normalised to NFC first.
    pub(crate) composes: bool,
    /// A BOS goes in front of prompts where the metadata does not say.
    pub(crate) wants_bos: bool,
}

/// The last two choices of most published patterns: see [`Stage::IsolateThenSpaces`].
const SPACES: &str = r"|\s+(?!\S)|\s+";

impl PreTokenizer {
    /// A pre-tokenizer out of published patterns, one per stage; `None` if one of them needs more
    /// than linear matching.
    pub(crate) fn from_patterns(
        patterns: &[String],
        whole_words: bool,
        composes: bool,
    ) -> Option<PreTokenizer> {
        let compile = |pattern: &String| match pattern.strip_suffix(SPACES) {
            Some(pattern) => compile_with_spaces(pattern).map(Cutter::Isolate),
            None => meta::Regex::new(pattern).ok().map(Cutter::Isolate),
        };
        if patterns.iter().any(|pattern| has_possessive(pattern)) {
            return None;
        }
        let stages = patterns.iter().map(compile).collect::<Option<Vec<_>>>()?;
        Some(PreTokenizer { stages, whole_words, composes, wants_bos: false })
    }

    /// The pre-tokenizer of a `tokenizer.ggml.pre` value; `None` for an unknown one.
    pub(crate) fn named(name: &str) -> Option<PreTokenizer> {
        let kind = KINDS.iter().find(|kind| kind.names.contains(&name))?;
        let stages = kind.stages.iter().map(compile).collect::<Option<Vec<_>>>()?;
        let composes = COMPOSED.contains(&name);
        let wants_bos = WANTS_BOS.contains(&name);
        Some(PreTokenizer { stages, whole_words: kind.whole_words, composes, wants_bos })
    }

    /// Calls `word` with every word of `text`, in order, until it fails; together they are the text.
    pub(crate) fn split<'t, E>(
        &self,
        text: &'t str,
        word: &mut dyn FnMut(&'t str) -> Result<(), E>,
    ) -> Result<(), E> {
        cut(&self.stages, text, word)
    }
}

/// Calls `word` with what is left of a piece when all stages have cut it.
fn cut<'t, E>(stages: &[Cutter], piece: &'t str, word: &mut Word<'_, 't, E>) -> Result<(), E> {
    let Some((stage, later)) = stages.split_first() else { return word(piece) };
    match stage {
        Cutter::Isolate(regex) => isolate(regex, piece, &mut |part| cut(later, part, word)),
        Cutter::Thousands(regex) => {
            isolate_thousands(regex, piece, &mut |part| cut(later, part, word))
        }
    }
}

/// Takes the words of a text.
type Word<'w, 't, E> = dyn FnMut(&'t str) -> Result<(), E> + 'w;

/// A compiled [`Stage`].
enum Cutter {
    /// Pattern 0 is the stage's own, pattern 1 (where present) the runs of white space.
    Isolate(meta::Regex),
    Thousands(meta::Regex),
}

fn compile(stage: &Stage) -> Option<Cutter> {
    match stage {
        Isolate(pattern) => meta::Regex::new(pattern).ok().map(Cutter::Isolate),
        IsolateThenSpaces(pattern) => compile_with_spaces(pattern).map(Cutter::Isolate),
        Thousands(pattern) => meta::Regex::new(pattern).ok().map(Cutter::Thousands),
    }
}

fn compile_with_spaces(pattern: &str) -> Option<meta::Regex> {
    meta::Regex::new_many(&[pattern, r"\s+"]).ok()
}

/// Whether a pattern has a possessive quantifier (`?+`, `*+`, `++`, `}+`), which the linear
/// matcher would read as two quantifiers.
fn has_possessive(pattern: &str) -> bool {
    let mut class_depth = 0usize;
    let mut after_quantifier = false;
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        let in_class = class_depth > 0;
        match c {
            '\\' => {
                // The braces of `\p{..}` are no quantifier.
                if matches!(chars.next(), Some('p' | 'P' | 'x' | 'u')) {
                    let rest = chars.as_str();
                    if let Some((_, after)) = rest.strip_prefix('{').and_then(|r| r.split_once('}'))
                    {
                        chars = after.chars();
                    }
                }
            }
            '[' => class_depth += 1,
            ']' => class_depth = class_depth.saturating_sub(1),
            '+' if !in_class && after_quantifier => return true,
            _ => {}
        }
        after_quantifier = !in_class && matches!(c, '?' | '*' | '+' | '}');
    }
    false
}

fn isolate<'t, E>(
    regex: &meta::Regex,
    piece: &'t str,
    word: &mut Word<'_, 't, E>,
) -> Result<(), E> {
    let mut push =
        |text: Option<&'t str>| text.filter(|t| !t.is_empty()).map_or(Ok(()), &mut *word);
    let mut input = regex_automata::Input::new(piece);
    let mut done = 0;
    while let Some(found) = regex.search(&input) {
        let mut end = found.end();
        if found.pattern().as_usize() == 1 && end < piece.len() {
            let last = piece.get(found.range()).and_then(|run| run.chars().next_back());
            let kept = end - last.map_or(0, char::len_utf8);
            if kept > found.start() {
                end = kept;
            }
        }
        push(piece.get(done..found.start()))?;
        push(piece.get(found.start()..end))?;
        done = end;
        // What matches nothing parts the text there, and is looked for again a character further on.
        let empty = found.is_empty();
        let next = piece.get(done..).and_then(|rest| rest.chars().next());
        let Some(next) = next else { break };
        input.set_start(if empty { done + next.len_utf8() } else { done });
    }
    push(piece.get(done..))
}

fn isolate_thousands<'t, E>(
    regex: &meta::Regex,
    piece: &'t str,
    word: &mut Word<'_, 't, E>,
) -> Result<(), E> {
    let mut push =
        |text: Option<&'t str>| text.filter(|t| !t.is_empty()).map_or(Ok(()), &mut *word);
    let mut done = 0;
    for found in regex.find_iter(piece) {
        push(piece.get(done..found.start()))?;
        done = found.start();
        let number = piece.get(found.range()).unwrap_or_default();
        let digits = number.chars().count();
        for (index, (at, _)) in number.char_indices().enumerate() {
            if (digits - index) % 3 == 0 {
                push(piece.get(done..found.start() + at))?;
                done = found.start() + at;
            }
        }
        push(piece.get(done..found.end()))?;
        done = found.end();
    }
    push(piece.get(done..))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(kind: &str, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        let splitter = PreTokenizer::named(kind).unwrap_or_else(|| panic!("kind {kind}"));
        let mut push = |word: &str| -> Result<(), ()> {
            words.push(word.to_owned());
            Ok(())
        };
        splitter.split(text, &mut push).unwrap();
        words
    }

    #[test]
    fn table_rows_compile_and_keep_the_text() {
        let text = "Hello  world's 1234\r\n\n  日本語 don't!? \u{3000}x\t\t";
        for name in known_names() {
            assert_eq!(words(name, text).concat(), text, "{name}");
        }
    }

    #[test]
    fn possessive_quantifiers_are_told_apart() {
        for (pattern, expect) in [
            (r"[^\r\n\p{L}]?+\p{L}+", true),
            (r"a++", true),
            (r"\p{N}{1,3}+", true),
            (r"[()*+,]+|\p{L}+|(?:a)?", false),
            (r"\++", false),
            (DEEPSEEK3, false),
            (O200K, false),
        ] {
            assert_eq!(has_possessive(pattern), expect, "{pattern}");
        }
    }

    #[test]
    fn patterns_that_match_nothing_part_the_text_and_end() {
        for (pattern, expect) in
            [("", &["a", "é", "b"][..]), ("b*", &["a", "é", "b"]), ("$", &["aéb"])]
        {
            let (regex, mut out) = (meta::Regex::new(pattern).expect("a pattern"), Vec::new());
            let mut push = |word| -> Result<(), ()> {
                out.push(word);
                Ok(())
            };
            isolate(&regex, "aéb", &mut push).unwrap();
            assert_eq!(out, expect, "{pattern:?}");
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = known_names().collect();
        names.sort_unstable();
        let before = names.len();
        names.dedup();
        assert_eq!(names.len(), before);
        assert!(PreTokenizer::named("no-such-kind").is_none());
    }

    #[test]
    fn white_space_leaves_its_last_character() {
        let cases: &[(&str, &str, &[&str])] = &[
            ("gpt-2", "a   b", &["a", "  ", " b"]),
            ("gpt-2", "a\n\nb", &["a", "\n", "\n", "b"]),
            ("gpt-2", "a  ", &["a", "  "]),
            ("smollm", " 12 a", &[" ", "1", "2", " a"]),
            ("llama-bpe", "a\n\n  b", &["a", "\n\n", " ", " b"]),
            ("llama-bpe", "12345's", &["123", "45", "'s"]),
            ("qwen2", "x 12", &["x", " ", "1", "2"]),
            ("tekken", "fooBar BAZ", &["foo", "Bar", " BAZ"]),
            ("superbpe", "a b 1234567½ c", &["a b ", "1", "234", "567", "½", " c"]),
            ("tiny_aya", "1234567 12ab", &["1", "234", "567", " ", "12", "ab"]),
            ("tiny_aya", "12345ab", &["123", "45", "ab"]),
            ("deepseek-v3", "1234漢字a", &["123", "4", "漢字", "a"]),
        ];
        for (kind, text, expect) in cases {
            assert_eq!(words(kind, text), *expect, "{kind} {text:?}");
        }
    }
}
