//! Ollama's store, read where it lies: `manifests/HOST/NAMESPACE/MODEL/TAG` name layers, and
//! `blobs/sha256-…` hold them. What is pulled by tokenmill lies in a folder of the same layout.

use crate::defaults::from_ollama;
use crate::digest::Digest;
use crate::error::{StoreError, disk_error, shown};
use crate::name::OllamaName;
use crate::own::{LocalFile, LocalModel};
use serde::Deserialize;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use tokenmill_ir::Defaults;

/// Longest manifest, bytes.
pub(crate) const MANIFEST_BYTES: u64 = 1 << 20;
/// Longest layer but the model, bytes.
pub(crate) const SMALL_BYTES: u64 = 4 << 20;
/// Most layers of a manifest.
const LAYERS: usize = 64;
const KIND: &str = "application/vnd.ollama.image.";

#[derive(Deserialize)]
struct Manifest {
    config: Option<Layer>,
    #[serde(default)]
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: String,
    size: u64,
}

/// One layer as a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Blob {
    /// What it is: `config`, `model`, `params`, …
    pub kind: String,
    pub digest: Digest,
    pub bytes: u64,
}

/// The layers of a model that this program runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layers {
    pub model: Blob,
    /// All others, none of them long.
    pub small: Vec<Blob>,
}

impl Layers {
    /// All of them.
    pub(crate) fn blobs(&self) -> impl Iterator<Item = &Blob> {
        std::iter::once(&self.model).chain(&self.small)
    }
}

/// What is wrong with a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// It is damaged, or made to harm.
    Bad(String),
    /// It asks for something that is not there.
    Unsupported(String),
}

impl Layers {
    /// Reads a manifest; every layer is known and safe, or it is refused.
    pub(crate) fn read(text: &[u8]) -> Result<Self, Flaw> {
        let manifest: Manifest =
            serde_json::from_slice(text).map_err(|e| Flaw::Bad(shown(&e.to_string())))?;
        if manifest.layers.len() > LAYERS {
            return Err(Flaw::Bad(format!("it has {} layers", manifest.layers.len())));
        }
        let mut blobs = Vec::new();
        let config = manifest.config.iter().map(|layer| ("config", layer));
        let layers = manifest.layers.iter().map(|layer| {
            let kind = layer.media_type.strip_prefix(KIND).unwrap_or(&layer.media_type);
            (kind, layer)
        });
        for (kind, layer) in layers.chain(config) {
            blobs.push(blob(kind, layer)?);
        }
        let (models, small): (Vec<_>, Vec<_>) = blobs.into_iter().partition(|b| b.kind == "model");
        match models.as_slice() {
            [model] => Ok(Self { model: model.clone(), small }),
            [] => Err(Flaw::Unsupported("no model layer, so others compute it".into())),
            several => Err(Flaw::Unsupported(format!("{} model layers", several.len()))),
        }
    }
}

fn blob(kind: &str, layer: &Layer) -> Result<Blob, Flaw> {
    let known = ["config", "license", "messages", "model", "params", "system", "template"];
    if !known.contains(&kind) {
        return Err(Flaw::Unsupported(format!("a layer of the kind {}", shown(kind))));
    }
    let hex = layer.digest.strip_prefix("sha256:");
    let Some(digest @ Digest::Sha256(_)) = hex.and_then(Digest::parse) else {
        return Err(Flaw::Bad(format!("it names the blob {}", shown(&layer.digest))));
    };
    if kind != "model" && layer.size > SMALL_BYTES {
        return Err(Flaw::Bad(format!("its {kind} layer has {} bytes", layer.size)));
    }
    Ok(Blob { kind: kind.to_string(), digest, bytes: layer.size })
}

/// Where a name's manifest lies.
pub(crate) fn manifest_path(root: &Path, name: &OllamaName) -> PathBuf {
    let OllamaName { host, namespace, model, tag } = name;
    root.join("manifests").join(host).join(namespace).join(model).join(tag)
}

/// Where a blob lies.
pub(crate) fn blob_path(root: &Path, digest: &Digest) -> PathBuf {
    root.join("blobs").join(format!("sha256-{}", digest.hex()))
}

/// A blob of that size in the first root that has it.
pub(crate) fn find_blob(roots: &[PathBuf], blob: &Blob) -> Option<PathBuf> {
    roots
        .iter()
        .map(|root| blob_path(root, &blob.digest))
        .find(|path| fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() == blob.bytes))
}

/// The names with a manifest below `root`.
pub(crate) fn names(root: &Path) -> Vec<OllamaName> {
    let mut found = Vec::new();
    let root = root.join("manifests");
    for host in folder_names(&root) {
        for space in folder_names(&root.join(&host)) {
            for model in folder_names(&root.join(&host).join(&space)) {
                for tag in folder_names(&root.join(&host).join(&space).join(&model)) {
                    found.extend(OllamaName::of_parts([&host, &space, &model, &tag]));
                }
            }
        }
    }
    found
}

fn folder_names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The model of a name, if one of the roots has its manifest and together they have its blobs.
pub(crate) fn find(roots: &[PathBuf], name: &OllamaName) -> Result<Option<LocalModel>, StoreError> {
    for root in roots {
        let path = manifest_path(root, name);
        if !path.is_file() {
            continue;
        }
        let layers = layers_of(&path, name)?;
        let small = layers.small.iter().map(|b| find_blob(roots, b)).collect::<Option<Vec<_>>>();
        if let (Some(model), Some(small)) = (find_blob(roots, &layers.model), small) {
            let defaults = defaults(name, &layers, &small)?;
            return Ok(Some(local_model(name, &layers, model, small, defaults)));
        }
    }
    Ok(None)
}

/// Why [`find`] gives nothing for a name that has a manifest: which blob is not there or too short.
pub(crate) fn incomplete(roots: &[PathBuf], name: &OllamaName) -> StoreError {
    let manifest = roots.iter().map(|root| manifest_path(root, name)).find(|path| path.is_file());
    let layers = manifest.map(|path| layers_of(&path, name));
    let why = match layers {
        Some(Err(error)) => return error,
        None => "its manifest is gone".to_string(),
        Some(Ok(layers)) => {
            let lost = layers.blobs().find(|blob| find_blob(roots, blob).is_none());
            lost.map_or_else(String::new, |blob| {
                let bytes = roots.iter().find_map(|root| {
                    fs::metadata(blob_path(root, &blob.digest)).ok().map(|m| m.len())
                });
                let found = bytes.map_or("is missing".to_string(), |n| format!("has {n} bytes"));
                format!("its {} {found}, {} are right", blob.kind, blob.bytes)
            })
        }
    };
    StoreError::Incomplete { name: name.to_string(), why }
}

/// The layers that a manifest on this disk names.
pub(crate) fn layers_of(path: &Path, name: &OllamaName) -> Result<Layers, StoreError> {
    let text = read_bounded(path, MANIFEST_BYTES)?;
    Layers::read(&text).map_err(|flaw| match flaw {
        Flaw::Bad(why) => {
            StoreError::BadRecord { path: path.to_path_buf(), why, name: name.to_string() }
        }
        Flaw::Unsupported(what) => unsupported(name, &what),
    })
}

/// A model of Ollama that this program does not run.
pub(crate) fn unsupported(name: &OllamaName, what: &str) -> StoreError {
    StoreError::Unsupported {
        what: format!("{name} has {what}, which"),
        instead: "choose a model that is one GGUF file: tokenmill list, or user/repo of the hub"
            .to_string(),
    }
}

/// What the small layers say, whose blobs lie at `paths` in the same order.
pub(crate) fn defaults(
    name: &OllamaName,
    layers: &Layers,
    paths: &[PathBuf],
) -> Result<Defaults, StoreError> {
    let mut defaults = Defaults::default();
    let (mut system, mut template, mut messages) = (None, None, None);
    for (blob, path) in layers.small.iter().zip(paths) {
        let text = read_bounded(path, SMALL_BYTES)?;
        match blob.kind.as_str() {
            "config" => {
                if let Some(format) = other_format(&text) {
                    return Err(unsupported(name, &format!("a model of the format {format}")));
                }
            }
            "params" => {
                defaults = from_ollama(&text).map_err(|why| {
                    let (path, name) = (path.clone(), name.to_string());
                    StoreError::BadRecord { path, why, name }
                })?;
            }
            "system" => system = Some(String::from_utf8_lossy(&text).into_owned()),
            "template" => template = Some(blob.bytes),
            "messages" => messages = Some(format!("messages to begin with, {} bytes", blob.bytes)),
            _ => {}
        }
    }
    defaults.system = system.filter(|text| !text.trim().is_empty());
    defaults.template_bytes = template;
    defaults.unused.extend(messages);
    Ok(defaults)
}

/// The model of layers whose blobs lie at `model` and, in the same order, `small`.
pub(crate) fn local_model(
    name: &OllamaName,
    layers: &Layers,
    model: PathBuf,
    small: Vec<PathBuf>,
    defaults: Defaults,
) -> LocalModel {
    let file = |(blob, path): (&Blob, &PathBuf)| LocalFile {
        path: path.clone(),
        bytes: blob.bytes,
        digest: Some(blob.digest),
    };
    let mut files = vec![file((&layers.model, &model))];
    files.extend(layers.small.iter().zip(&small).map(file));
    LocalModel { name: name.to_string(), path: model, files, defaults }
}

/// The format a config names, unless it is the one this program reads.
fn other_format(config: &[u8]) -> Option<String> {
    let config: serde_json::Value = serde_json::from_slice(config).ok()?;
    let format = config.get("model_format")?.as_str()?;
    (!["", "gguf"].contains(&format)).then(|| shown(format))
}

fn read_bounded(path: &Path, most: u64) -> Result<Vec<u8>, StoreError> {
    let fail = |e| disk_error("read", path, 0, e);
    let mut text = Vec::new();
    File::open(path).map_err(fail)?.take(most).read_to_end(&mut text).map_err(fail)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(kind: &str, digest: &str, size: u64) -> String {
        format!(r#"{{"mediaType":"{KIND}{kind}","digest":"{digest}","size":{size}}}"#)
    }

    fn read(layers: &[String]) -> Result<Vec<String>, Flaw> {
        let text = format!(r#"{{"schemaVersion":2,"layers":[{}]}}"#, layers.join(","));
        let found = Layers::read(text.as_bytes())?;
        Ok([found.model].into_iter().chain(found.small).map(|b| b.kind).collect())
    }

    #[test]
    fn the_model_comes_first() {
        let hex = format!("sha256:{}", "ab".repeat(32));
        let found = read(&[layer("template", &hex, 5), layer("model", &hex, 1 << 40)]).unwrap();
        assert_eq!(found, ["model", "template"]);
    }

    #[test]
    fn layers_are_known_and_safe() {
        let hex = format!("sha256:{}", "ab".repeat(32));
        let model = || layer("model", &hex, 9);
        for kind in ["adapter", "projector", "tensor", "embed", "a\\nb"] {
            let flaw = read(&[model(), layer(kind, &hex, 1)]).unwrap_err();
            assert!(matches!(&flaw, Flaw::Unsupported(w) if w.contains(kind)), "{flaw:?}");
        }
        for layers in [vec![], vec![layer("template", &hex, 1)], vec![model(), model()]] {
            assert!(matches!(read(&layers), Err(Flaw::Unsupported(_))), "{layers:?}");
        }
        let long = "sha256:".to_string() + &"ab".repeat(20);
        for digest in ["sha256:../../../x", "/etc/passwd", &"ab".repeat(32), &long, "", "md5:ab"] {
            assert!(matches!(read(&[layer("model", digest, 1)]), Err(Flaw::Bad(_))), "{digest}");
        }
        assert!(matches!(read(&[model(), layer("params", &hex, 1 << 30)]), Err(Flaw::Bad(_))));
        assert!(matches!(read(&vec![model(); LAYERS + 1]), Err(Flaw::Bad(_))));
        for text in ["", "[]", "{\"layers\":3}", "{\"layers\":[{}]}", "\u{0}"] {
            assert!(Layers::read(text.as_bytes()).is_err(), "{text:?}");
        }
    }
}
