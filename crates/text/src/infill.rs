//! Filling in the middle: the tokens that families of models mark a text's two ends with, and the order
//! in which they were trained on these.

use crate::encoder::Encoder;
use crate::tokenizer::{Parts, Special, TokenTable, TokenizerError};

/// How a family marks what is before and behind the middle that is to be written.
struct Family {
    prefix: &'static str,
    suffix: &'static str,
    /// What the middle follows; empty: nothing.
    middle: &'static str,
    /// What is behind comes first.
    suffix_first: bool,
    /// Further tokens that the middle ends with.
    ends: &'static [&'static str],
    /// Before the name of a repository, and before that of a file in it; empty: nothing.
    repository: &'static str,
    file: &'static str,
}

const fn family(prefix: &'static str, suffix: &'static str, middle: &'static str) -> Family {
    let (repository, file) = ("", "");
    Family { prefix, suffix, middle, suffix_first: false, ends: &[], repository, file }
}

/// In the order in which they are looked for. Sources: the cards of Qwen2.5-Coder, CodeGemma, StarCoder 2,
/// SantaCoder, DeepSeek-Coder and Code Llama; CodeGeeX4's guide; Seed-Coder's report; mistral-common.
const FAMILIES: &[Family] = &[
    Family {
        ends: &["<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>"],
        repository: "<|repo_name|>",
        file: "<|file_sep|>",
        ..family("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    },
    Family {
        ends: &["<fim_pad>", "<file_sep>", "<repo_name>", "<filename>", "<reponame>"],
        repository: "<repo_name>",
        file: "<file_sep>",
        ..family("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
    },
    Family { ends: &["<fim-pad>"], ..family("<fim-prefix>", "<fim-suffix>", "<fim-middle>") },
    family("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    Family { ends: &["▁<EOT>", " <EOT>"], ..family("▁<PRE>", "▁<SUF>", "▁<MID>") },
    Family { ends: &["▁<EOT>", " <EOT>"], ..family(" <PRE>", " <SUF>", " <MID>") },
    Family { ends: &["<EOT>"], ..family("<PRE>", "<SUF>", "<MID>") },
    Family {
        suffix_first: true,
        ..family("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>")
    },
    Family { suffix_first: true, ..family("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>") },
    Family { suffix_first: true, ..family("[PREFIX]", "[SUFFIX]", "") },
];

/// The ids that a file names for these marks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) prefix: Option<u32>,
    pub(crate) suffix: Option<u32>,
    pub(crate) middle: Option<u32>,
    pub(crate) pad: Option<u32>,
}

/// The marks of a vocabulary.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Infill {
    prefix: u32,
    suffix: u32,
    middle: Option<u32>,
    suffix_first: bool,
    /// Before the names of a repository and of a file in it, where both have a mark.
    names: Option<(u32, u32)>,
    /// Tokens that end what was filled in, in ascending order.
    ends: Vec<u32>,
}

impl Infill {
    /// Those that the file names, else those whose texts are known.
    pub(crate) fn of(table: &TokenTable, named: Named) -> Option<Infill> {
        let known = |family: &'static Family| {
            let all = [family.prefix, family.suffix, family.middle]
                .into_iter()
                .chain(family.ends.iter().copied());
            all.filter(|text| !text.is_empty())
        };
        let texts: Vec<&str> = FAMILIES.iter().flat_map(known).collect();
        let ids = table.ids_of(&texts);
        let id = |text: &str| {
            let at = texts.iter().position(|known| *known == text)?;
            ids.get(at).copied().flatten()
        };
        let has = |family: &&Family| {
            let all = [family.prefix, family.suffix, family.middle];
            all.into_iter().filter(|text| !text.is_empty()).all(|text| id(text).is_some())
        };
        let mut infill = match (named.prefix, named.suffix, named.middle) {
            (Some(prefix), Some(suffix), middle @ Some(_)) => {
                let of = |family: &&Family| id(family.prefix) == Some(prefix);
                let family = FAMILIES.iter().filter(has).find(of);
                let ends = family.map(|f| f.ends.iter().filter_map(|text| id(text)).collect());
                let suffix_first = family.is_some_and(|family| family.suffix_first);
                let names = family.and_then(|f| id(f.repository).zip(id(f.file)));
                let ends = ends.unwrap_or_default();
                Infill { prefix, suffix, middle, suffix_first, names, ends }
            }
            _ => {
                let family = FAMILIES.iter().find(has)?;
                Infill {
                    prefix: id(family.prefix)?,
                    suffix: id(family.suffix)?,
                    middle: id(family.middle),
                    suffix_first: family.suffix_first,
                    names: id(family.repository).zip(id(family.file)),
                    ends: family.ends.iter().filter_map(|text| id(text)).collect(),
                }
            }
        };
        // Whoever begins another fill has ended this one.
        infill.ends.extend([infill.prefix, infill.suffix].into_iter().chain(infill.middle));
        infill.ends.extend(named.pad);
        infill.ends.sort_unstable();
        infill.ends.dedup();
        Some(infill)
    }

    /// Tokens that end what was filled in, beside those that end every answer.
    pub(crate) fn ends(&self) -> &[u32] {
        &self.ends
    }
}

impl TokenTable {
    /// The ids of these texts, the first of each, in one go through the table.
    fn ids_of(&self, texts: &[&str]) -> Vec<Option<u32>> {
        let mut found = vec![None; texts.len()];
        for id in 0..self.len() as u32 {
            let Some((bytes, _)) = self.get(id) else { continue };
            if !bytes.ends_with(b">") && !bytes.ends_with(b"]") {
                continue;
            }
            let at = texts.iter().position(|text| text.as_bytes() == bytes);
            if let Some(slot) = at.and_then(|at| found.get_mut(at)) {
                slot.get_or_insert(id);
            }
        }
        found
    }
}

/// What is before the middle: a text, or its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before<'a> {
    /// A text, in which control tokens spelled out are text: it is a file like any other.
    Text(&'a str),
    /// Its tokens.
    Tokens(&'a [u32]),
}

/// Files that stand before the one whose middle is written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Beside {
    /// What they begin with.
    pub head: Vec<u32>,
    /// Each of them.
    pub files: Vec<Vec<u32>>,
    /// Between the last of them and the file whose middle is written.
    pub own: Vec<u32>,
}

/// Names of a repository and of a file that nobody named, and what stands before a file where the
/// vocabulary has no mark for that: as llama.cpp's server has them, so that prompts are the same.
const REPOSITORY: &str = "myproject\n";
const FILE: &str = "filename\n";
const BEFORE_FILE: &str = "\n\n--- snippet ---\n\n";

impl Encoder<'_> {
    /// Files (a name and a text each) as a model knows them that was trained on whole repositories
    /// (Qwen2.5-Coder, arXiv:2409.12186, figure 4), else as texts one behind another.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn beside(&self, files: &[(String, String)]) -> Result<Beside, TokenizerError> {
        let names = self.tokenizer().parts.infill.as_ref().and_then(|infill| infill.names);
        let plain = |text: &str| self.encode(text, Special::Plain);
        let marked = |mark: u32, name: &str| -> Result<Vec<u32>, TokenizerError> {
            Ok([vec![mark], plain(name)?].concat())
        };
        let one = |(name, text): &(String, String)| {
            let before = match names {
                Some((_, file)) => marked(file, &format!("{name}\n"))?,
                None => plain(BEFORE_FILE)?,
            };
            Ok([before, plain(text)?].concat())
        };
        let files = files.iter().map(one).collect::<Result<_, _>>()?;
        Ok(match names {
            Some((repository, file)) => {
                Beside { head: marked(repository, REPOSITORY)?, files, own: marked(file, FILE)? }
            }
            None => Beside { files, ..Beside::default() },
        })
    }

    /// The prompt behind which a model writes the middle between two texts; `None` where its vocabulary
    /// has no marks for that.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn infill(
        &self,
        before: Before<'_>,
        behind: &str,
    ) -> Result<Option<Vec<u32>>, TokenizerError> {
        let Parts { infill, prefix: begin, strips_lead, .. } = &self.tokenizer().parts;
        let Some(infill) = infill else { return Ok(None) };
        let before = match before {
            Before::Text(text) => self.encode(text, Special::Plain)?,
            Before::Tokens(ids) => ids.strip_prefix(&begin[..]).unwrap_or(ids).to_vec(),
        };
        let mut after = self.encode(behind, Special::Plain)?;
        // What is behind is no text of its own: the blank that encoding puts before one goes again.
        let blank = |id: &u32| self.tokenizer().token_bytes(*id) == Some(b" ");
        if *strips_lead && !behind.starts_with(' ') && after.first().is_some_and(blank) {
            after.remove(0);
        }
        let (before, after) = ((infill.prefix, before), (infill.suffix, after));
        let (first, second) = if infill.suffix_first { (after, before) } else { (before, after) };
        let mut ids = begin.clone();
        for (mark, text) in [first, second] {
            ids.push(mark);
            ids.extend(text);
        }
        ids.extend(infill.middle);
        Ok(Some(ids))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(texts: &[&str]) -> TokenTable {
        let mut table = TokenTable::default();
        texts.iter().for_each(|text| table.push(text.as_bytes(), false));
        table
    }

    #[test]
    fn marks_are_known_by_name_or_by_the_file() {
        let qwen = ["a", "<|fim_middle|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_pad|>", "b"];
        let found = Infill::of(&table(&qwen), Named::default()).expect("marks");
        assert_eq!((found.prefix, found.suffix, found.middle), (2, 3, Some(1)));
        assert_eq!((found.suffix_first, &found.ends[..]), (false, &[1, 2, 3, 4][..]));
        assert_eq!(found.names, None);
        let names = ["<|repo_name|>", "<|file_sep|>"];
        let found = Infill::of(&table(&[&qwen[..], &names].concat()), Named::default());
        assert_eq!(found.expect("marks").names, Some((6, 7)));
        let codestral = table(&["[SUFFIX]", "[PREFIX]", "[MIDDLE]"]);
        let found = Infill::of(&codestral, Named::default()).expect("marks");
        assert_eq!((found.prefix, found.suffix, found.middle), (1, 0, None));
        assert!(found.suffix_first);
        // One mark is missing, and a mark in a longer token is none.
        for none in [&["<PRE>", "<SUF>", "x<MID>"][..], &["<|fim_prefix|>", "<|fim_suffix|>"]] {
            assert_eq!(Infill::of(&table(none), Named::default()), None);
        }
        let of_file = Named { prefix: Some(0), suffix: Some(1), middle: Some(2), pad: Some(3) };
        let found = Infill::of(&table(&["p", "s", "m", "x"]), of_file).expect("marks");
        assert_eq!((found.prefix, found.middle, found.ends.len()), (0, Some(2), 4));
        let seed = table(&["<[fim-suffix]>", "<[fim-prefix]>", "<[fim-middle]>"]);
        let of_file = Named { prefix: Some(1), suffix: Some(0), middle: Some(2), pad: None };
        assert!(Infill::of(&seed, of_file).expect("marks").suffix_first, "as the family has it");
    }
}
