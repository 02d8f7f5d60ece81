//! Which safetensors files of a folder are its model.
//!
//! `model.safetensors` comes first, whatever is beside it, as in transformers. Else the index says:
//! one that names files which are not there was often carried over from another repository, and
//! then the files that are there count, those of a numbered set where none of the set is missing
//! (mlx-lm takes every `model*.safetensors`).

use std::path::{Path, PathBuf};

use crate::error::LoadError;
use crate::open::read_whole;
use crate::safetensors::{self, ShardIndex};

/// The usual names.
const WHOLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Longest shard index, bytes.
const MAX_INDEX_BYTES: u64 = 256 << 20;

/// The files of a model.
#[derive(Debug)]
pub(crate) struct Shards {
    /// Names, in order.
    pub files: Vec<String>,
    /// The index that names them, where one does.
    pub index: Option<Index>,
}

/// An index and where it is.
#[derive(Debug)]
pub(crate) struct Index {
    pub path: PathBuf,
    pub content: ShardIndex,
}

impl Index {
    fn read(path: PathBuf) -> Result<Self, LoadError> {
        let json = read_whole(&path, MAX_INDEX_BYTES)?;
        let content = safetensors::parse_index(&path, &json)?;
        Ok(Index { path, content })
    }

    fn missing<'a>(&'a self, names: &'a [String]) -> impl Iterator<Item = &'a String> {
        self.content.files.iter().filter(|file| !names.contains(file))
    }
}

/// The number of a part and how many there are: `stem-00001-of-00003.gguf` → (stem, 1, 3).
pub(crate) fn part<'n>(name: &'n str, extension: &str) -> Option<(&'n str, u32, u32)> {
    let rest = name.strip_suffix(extension)?;
    let (rest, count) = rest.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| -> Option<u32> { (text.len() == 5).then(|| text.parse().ok())? };
    let (number, count) = (digits(number)?, digits(count)?);
    Some((stem, number, count))
}

/// The files of the index at `path`, which was asked for by name.
pub(crate) fn of_index(path: &Path, names: &[String]) -> Result<Shards, LoadError> {
    let index = Index::read(path.to_owned())?;
    if index.missing(names).next().is_some() {
        return Err(does_not_fit(&index, names));
    }
    Ok(Shards { files: index.content.files.clone(), index: Some(index) })
}

/// The files around the part `name`, which was asked for by name.
pub(crate) fn of_part(folder: &Path, name: &str, names: &[String]) -> Result<Shards, LoadError> {
    if names.iter().any(|n| n == INDEX) {
        let index = Index::read(folder.join(INDEX))?;
        let named = index.content.files.iter().any(|file| file == name);
        if named && index.missing(names).next().is_none() {
            return Ok(Shards { files: index.content.files.clone(), index: Some(index) });
        }
    }
    match numbered(name) {
        Some((stem, count)) => whole_set(stem, count, names)
            .map(|files| Shards { files, index: None })
            .ok_or_else(|| incomplete(&folder.join(name), stem, count, names)),
        None => Ok(Shards { files: vec![name.to_owned()], index: None }),
    }
}

/// The files of the model in a folder that has some; `names` are all its files, sorted.
pub(crate) fn of_folder(folder: &Path, names: &[String]) -> Result<Shards, LoadError> {
    if names.iter().any(|n| n == WHOLE) {
        return Ok(Shards { files: vec![WHOLE.to_owned()], index: None });
    }
    let ending = |end: &str| names.iter().filter(|n| n.ends_with(end)).collect::<Vec<_>>();
    let (indexes, files) = (ending(".safetensors.index.json"), ending(".safetensors"));
    let index = match indexes.as_slice() {
        list if list.iter().any(|n| *n == INDEX) => Some(INDEX),
        [only] => Some(only.as_str()),
        _ => None,
    };
    let index = index.map(|name| Index::read(folder.join(name))).transpose()?;
    if let Some(index) = index {
        if index.missing(names).next().is_none() {
            return Ok(Shards { files: index.content.files.clone(), index: Some(index) });
        }
        return match by_names(&files, names) {
            // An index that names some of them is right, and the rest is to come.
            Some(found) if !found.iter().any(|file| index.content.files.contains(file)) => {
                Ok(Shards { files: found, index: None })
            }
            _ => Err(does_not_fit(&index, names)),
        };
    }
    if let Some(files) = by_names(&files, names) {
        return Ok(Shards { files, index: None });
    }
    let mut sets = files.iter().filter_map(|name| numbered(name)).collect::<Vec<_>>();
    sets.dedup();
    match sets.as_slice() {
        [(stem, count)] if whole_set(stem, *count, names).is_none() => {
            Err(incomplete(folder, stem, *count, names))
        }
        _ => Err(ambiguous(folder, &files)),
    }
}

/// Files that are a model by their names: the parts of the only set where all are there, or the
/// only file.
fn by_names(files: &[&String], names: &[String]) -> Option<Vec<String>> {
    let mut sets: Vec<(&str, u32)> = files.iter().filter_map(|name| numbered(name)).collect();
    sets.dedup();
    // Other sets beside the model's own are of another program; parts of two are a mixture.
    if sets.iter().any(|(stem, _)| *stem == "model") {
        sets.retain(|(stem, _)| *stem == "model");
    }
    match (sets.as_slice(), files) {
        ([(stem, count)], _) => {
            let mut set = whole_set(stem, *count, names)?;
            // As mlx-lm does: what some tools cannot quantise lies beside the parts.
            let beside = |name: &&&String| name.starts_with("model") && numbered(name).is_none();
            set.extend(files.iter().filter(beside).map(|name| (*name).clone()));
            Some(set)
        }
        ([], [only]) => Some(vec![(*only).clone()]),
        _ => None,
    }
}

/// The set that a file belongs to.
fn numbered(name: &str) -> Option<(&str, u32)> {
    part(name, ".safetensors").map(|(stem, _, count)| (stem, count))
}

fn file_of(stem: &str, number: u32, count: u32) -> String {
    format!("{stem}-{number:05}-of-{count:05}.safetensors")
}

/// All files of a set, if they are there.
fn whole_set(stem: &str, count: u32, names: &[String]) -> Option<Vec<String>> {
    let files = (1..=count).map(|number| file_of(stem, number, count));
    let found = files.map_while(|file| names.contains(&file).then_some(file)).collect::<Vec<_>>();
    (count > 0 && found.len() == count as usize).then_some(found)
}

fn incomplete(path: &Path, stem: &str, count: u32, names: &[String]) -> LoadError {
    let files = (1..=count).map(|number| file_of(stem, number, count));
    let missing: Vec<String> = files.filter(|file| !names.contains(file)).collect();
    let (lost, list) = (missing.len(), listed(&missing));
    let found = format!("{lost} of the {count} parts of the model are missing ({list})");
    LoadError::incomplete(path, format!("{found}; download them into the same folder"))
}

fn does_not_fit(index: &Index, names: &[String]) -> LoadError {
    let missing: Vec<String> = index.missing(names).cloned().collect();
    let (lost, all, list) = (missing.len(), index.content.files.len(), listed(&missing));
    LoadError::incomplete(
        &index.path,
        format!(
            "the index does not fit the folder: {lost} of the {all} files it names are missing \
             ({list}); download them, or remove the index if the model is whole without them"
        ),
    )
}

/// Several models in a folder.
pub(crate) fn ambiguous(folder: &Path, names: &[&String]) -> LoadError {
    LoadError::not_a_model(folder, format!("several models, name one of: {}", listed(names)))
}

/// The first few of many names.
pub(crate) fn listed(names: &[impl AsRef<str>]) -> String {
    let mut list = names.iter().take(8).map(AsRef::as_ref).collect::<Vec<_>>().join(", ");
    if names.len() > 8 {
        list.push_str(", …");
    }
    crate::error::shorten(list)
}
