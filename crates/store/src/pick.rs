//! Which files of a repository or folder make up the model that was asked for. Pure.

use crate::digest::Digest;

/// One file of a listing, local or remote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedFile {
    /// Path in the repository, `/` between parts.
    pub path: String,
    /// Its size, where stated.
    pub bytes: Option<u64>,
    /// Its digest, where stated.
    pub digest: Option<Digest>,
}

/// The files of one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Choice {
    /// GGUF: the parts in order; the first is the one to load.
    Gguf(Vec<ListedFile>),
    /// Safetensors and what belongs to them, in the root of the repository.
    Folder(Vec<ListedFile>),
}

impl Choice {
    /// Its files.
    pub(crate) fn files(&self) -> &[ListedFile] {
        match self {
            Self::Gguf(files) | Self::Folder(files) => files,
        }
    }
}

/// No choice: what was wanted and what there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NoChoice {
    /// What was asked for.
    pub wanted: String,
    /// Labels there are.
    pub choices: Vec<String>,
}

/// Taken in this order when no quantisation is named and there are several.
const PREFERENCE: &[&str] = &[
    "Q4_K_M",
    "UD-Q4_K_XL",
    "Q4_K_S",
    "Q4_0",
    "Q4_1",
    "IQ4_NL",
    "IQ4_XS",
    "MXFP4",
    "Q5_K_M",
    "Q6_K",
    "Q8_0",
    "BF16",
    "F16",
    "F32",
];

/// Files beside the weights that loading or chatting may need.
const COMPANIONS: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tekken.json",
    "tiktoken.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "model.safetensors.index.json",
    "quantize_config.json",
    "quant_config.json",
    "hf_quant_config.json",
];

/// Chooses the files for `quant`, or the best there is.
pub(crate) fn choose(files: &[ListedFile], quant: Option<&str>) -> Result<Choice, NoChoice> {
    let groups = gguf_groups(files);
    let labels = || groups.iter().map(describe).collect::<Vec<_>>();
    if let Some(quant) = quant {
        let exact: Vec<_> = groups.iter().filter(|g| g.label.eq_ignore_ascii_case(quant)).collect();
        let tails: Vec<_> = groups.iter().filter(|g| is_tail(&g.stem, quant)).collect();
        return match (exact.as_slice(), tails.as_slice()) {
            ([group], _) | ([], [group]) => Ok(Choice::Gguf(group.files.clone())),
            ([], []) => {
                let wanted = format!("whole file for {quant}");
                Err(NoChoice { wanted, choices: labels() })
            }
            _ => {
                let wanted = format!("single model for {quant}");
                Err(NoChoice { wanted, choices: labels() })
            }
        };
    }
    if let [only] = groups.as_slice() {
        return Ok(Choice::Gguf(only.files.clone()));
    }
    let preferred =
        PREFERENCE.iter().find_map(|p| groups.iter().find(|g| g.label.eq_ignore_ascii_case(p)));
    if let Some(group) = preferred {
        return Ok(Choice::Gguf(group.files.clone()));
    }
    if !groups.is_empty() {
        return Err(NoChoice { wanted: "usual quantisation".into(), choices: labels() });
    }
    let folder = folder_files(files);
    if folder.is_empty() {
        let wanted = ".gguf file and no config.json with .safetensors".to_string();
        let choices = files.iter().take(12).map(|f| crate::error::shown(&f.path)).collect();
        return Err(NoChoice { wanted, choices });
    }
    Ok(Choice::Folder(folder))
}

/// The labels of the whole GGUF models of a listing.
pub(crate) fn gguf_labels(files: &[ListedFile]) -> Vec<String> {
    gguf_groups(files).into_iter().map(|g| g.label).collect()
}

/// One GGUF model: a file, or all parts of a split one.
struct Group {
    /// Name without folder, extension and part number.
    stem: String,
    /// The quantisation in the name, or the whole stem.
    label: String,
    files: Vec<ListedFile>,
}

fn describe(group: &Group) -> String {
    let bytes: Option<u64> = group.files.iter().map(|f| f.bytes).sum();
    match bytes {
        Some(bytes) => {
            format!("{} ({:.1} GB)", crate::error::shown(&group.label), bytes as f64 / 1e9)
        }
        None => crate::error::shown(&group.label),
    }
}

/// Whole GGUF models of a listing; a split one with a part missing is left out, and so are
/// projectors and draft heads, which are no models by themselves.
fn gguf_groups(files: &[ListedFile]) -> Vec<Group> {
    let mut groups: Vec<(String, u32, Group)> = Vec::new();
    for file in files {
        let lower = file.path.to_ascii_lowercase();
        let base = file.path.rsplit('/').next().unwrap_or_default();
        let Some(stem) = lower.ends_with(".gguf").then(|| base.get(..base.len() - 5)).flatten()
        else {
            continue;
        };
        if lower.contains("mmproj") || lower.contains("imatrix") {
            continue;
        }
        let (stem, part) = split_part(stem);
        let folder = file.path.get(..file.path.len() - base.len()).unwrap_or_default();
        let key = format!("{folder}{stem}");
        let (_, of) = part.unwrap_or((1, 1));
        match groups.iter_mut().find(|(k, o, _)| *k == key && *o == of) {
            Some((_, _, group)) => group.files.push(file.clone()),
            None => {
                let label = quant_label(stem).unwrap_or(stem).to_string();
                let group = Group { stem: stem.to_string(), label, files: vec![file.clone()] };
                groups.push((key, of, group));
            }
        }
    }
    groups.retain(|(_, of, group)| group.files.len() == *of as usize);
    let mut groups: Vec<Group> = groups.into_iter().map(|(_, _, group)| group).collect();
    let labels: Vec<String> = groups.iter().map(|g| g.label.to_ascii_lowercase()).collect();
    for group in &mut groups {
        group.files.sort_by(|a, b| a.path.cmp(&b.path));
        // Several models of one quantisation are told apart by their whole names.
        let label = group.label.to_ascii_lowercase();
        if labels.iter().filter(|l| **l == label).count() > 1 {
            group.label.clone_from(&group.stem);
        }
    }
    groups
}

/// `name-00002-of-00003` as the name and (2, 3).
fn split_part(stem: &str) -> (&str, Option<(u32, u32)>) {
    let parsed = || {
        let (head, of) = stem.rsplit_once("-of-")?;
        let (name, number) = head.rsplit_once('-')?;
        if number.len() != 5 || of.len() != 5 {
            return None;
        }
        let (number, of) = (number.parse().ok()?, of.parse().ok()?);
        (1..=of).contains(&number).then_some((name, Some((number, of))))
    };
    parsed().unwrap_or((stem, None))
}

/// The quantisation at the end of a stem: `Model-1B-UD-Q4_K_XL` gives `UD-Q4_K_XL`.
fn quant_label(stem: &str) -> Option<&str> {
    let start = stem.rfind(['-', '.']).map_or(0, |i| i + 1);
    let last = stem.get(start..)?;
    if !is_quant_word(last) {
        return None;
    }
    let head = stem.get(..start.saturating_sub(1)).unwrap_or_default();
    let has_prefix = head.len() >= 3 && head.get(head.len() - 3..) == Some("-UD");
    if has_prefix { stem.get(start - 3..) } else { Some(last) }
}

fn is_quant_word(word: &str) -> bool {
    let upper = word.to_ascii_uppercase();
    let digit_after = |prefix: &str| {
        upper.strip_prefix(prefix).is_some_and(|r| r.starts_with(|c: char| c.is_ascii_digit()))
    };
    ["Q", "IQ", "TQ", "F", "BF", "FP", "MXFP", "NVFP"].iter().any(|p| digit_after(p))
}

fn is_tail(stem: &str, quant: &str) -> bool {
    let (stem, quant) = (stem.to_ascii_lowercase(), quant.to_ascii_lowercase());
    stem.strip_suffix(&quant).is_some_and(|head| head.is_empty() || head.ends_with(['-', '.', '_']))
}

fn folder_files(files: &[ListedFile]) -> Vec<ListedFile> {
    let is_weights = |f: &ListedFile| f.path.ends_with(".safetensors") && !f.path.contains('/');
    let is_twin = |f: &ListedFile| f.path.starts_with("consolidated");
    let has_config = files.iter().any(|f| f.path == "config.json");
    let has_named = files.iter().any(|f| is_weights(f) && !is_twin(f));
    if !has_config || !files.iter().any(is_weights) {
        return Vec::new();
    }
    files
        .iter()
        .filter(|f| {
            COMPANIONS.contains(&f.path.as_str()) || (is_weights(f) && !(has_named && is_twin(f)))
        })
        .cloned()
        .collect()
}

/// True for a path that stays in its folder on every file system.
pub(crate) fn is_safe_path(path: &str) -> bool {
    !path.is_empty()
        && path.len() <= 1024
        && path.split('/').all(|part| {
            !part.is_empty()
                && part != "."
                && part != ".."
                && !part.chars().any(|c| c.is_control() || matches!(c, '\\' | ':'))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(paths: &[&str]) -> Vec<ListedFile> {
        let file = |p: &&str| ListedFile { path: p.to_string(), bytes: Some(1), digest: None };
        paths.iter().map(file).collect()
    }

    fn chosen(paths: &[&str], quant: Option<&str>) -> Result<Vec<String>, Vec<String>> {
        choose(&list(paths), quant)
            .map(|c| c.files().iter().map(|f| f.path.clone()).collect())
            .map_err(|e| e.choices)
    }

    #[test]
    fn choices() {
        let many = ["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-UD-Q4_K_XL.gguf", "mmproj-F16.gguf", "a.md"];
        let split =
            ["Q2/m.Q2_K-00002-of-00002.gguf", "Q2/m.Q2_K-00001-of-00002.gguf", "m.q6_k.gguf"];
        let torn = ["m-Q4_0-00001-of-00003.gguf", "m-Q4_0-00003-of-00003.gguf", "m-Q8_0.gguf"];
        let two = ["a-7b-Q4_0.gguf", "a-13b-Q4_0.gguf", "a-7b-Q8_0.gguf"];
        let folder = [
            "config.json",
            "model.safetensors",
            "consolidated.safetensors",
            "x.bin",
            "tokenizer.json",
            "sub/model.safetensors",
            "README.md",
        ];
        let table: &[(&[&str], Option<&str>, &[&str])] = &[
            (&many, None, &["m-Q4_K_M.gguf"]),
            (&many, Some("q8_0"), &["m-Q8_0.gguf"]),
            (&many, Some("ud-q4_k_xl"), &["m-UD-Q4_K_XL.gguf"]),
            (&many, Some("Q4_K_XL"), &["m-UD-Q4_K_XL.gguf"]),
            (
                &split,
                Some("Q2_K"),
                &["Q2/m.Q2_K-00001-of-00002.gguf", "Q2/m.Q2_K-00002-of-00002.gguf"],
            ),
            (&split, Some("Q6_K"), &["m.q6_k.gguf"]),
            (&torn, None, &["m-Q8_0.gguf"]),
            (&two, Some("a-13b-q4_0"), &["a-13b-Q4_0.gguf"]),
            (&two, Some("Q8_0"), &["a-7b-Q8_0.gguf"]),
            (&two, None, &["a-7b-Q8_0.gguf"]),
            (&["only-odd.gguf"], None, &["only-odd.gguf"]),
            (&folder, None, &["config.json", "model.safetensors", "tokenizer.json"]),
        ];
        for (paths, quant, expect) in table {
            assert_eq!(chosen(paths, *quant).unwrap(), *expect, "{quant:?}");
        }
    }

    #[test]
    fn no_choice_lists_what_there_is() {
        let paths = ["m-Q8_0.gguf", "m-Q5_K_M.gguf"];
        let found = chosen(&paths, Some("Q4_K_M")).unwrap_err();
        assert_eq!(found, ["Q8_0 (0.0 GB)", "Q5_K_M (0.0 GB)"]);
        assert!(chosen(&["m-Q4_0-00001-of-00003.gguf"], Some("Q4_0")).is_err(), "parts missing");
        assert!(chosen(&["config.json"], None).is_err());
        assert!(chosen(&["model.safetensors"], None).is_err(), "no config");
        assert!(chosen(&[], None).is_err());
        let two = chosen(&["a-7b-Q4_0.gguf", "a-13b-Q4_0.gguf"], Some("Q4_0")).unwrap_err();
        assert_eq!(two, ["a-7b-Q4_0 (0.0 GB)", "a-13b-Q4_0 (0.0 GB)"], "which of them?");
        // "Q8_0" is not the tail of another word
        assert!(chosen(&["m-IQ8_0.gguf"], Some("Q8_0")).is_err());
    }

    #[test]
    fn paths_stay_inside() {
        for (path, expect) in [
            ("a.gguf", true),
            ("a/b.gguf", true),
            ("", false),
            ("/a", false),
            ("../a", false),
            ("a/../b", false),
            ("a//b", false),
            ("a\\..\\b", false),
            ("c:a", false),
            ("a\n", false),
            ("./a", false),
            (".gitattributes", true),
        ] {
            assert_eq!(is_safe_path(path), expect, "{path:?}");
        }
    }
}
