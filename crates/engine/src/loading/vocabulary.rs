//! Tokenizer and chat template of an open model, from GGUF metadata or the files beside the weights.

use std::path::Path;
use std::sync::Arc;

use serde_json::Value as Json;
use thiserror::Error;
use tokenmill_files::OpenModel;
use tokenmill_ir::{Container, Meta, MetaError, MetaValue};
use tokenmill_text::{
    ChatTemplate, GgufVocab, HfTokenizerConfig, TemplateError, TemplateTokens, Tokenizer,
    TokenizerError,
};

/// Largest tokenizer file read, bytes.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Why a model's vocabulary cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum VocabularyError {
    /// A metadata key is missing or of the wrong type.
    #[error("tokenizer metadata: {0}")]
    Meta(#[from] MetaError),
    /// The vocabulary itself is wrong or unsupported.
    #[error("tokenizer: {0}")]
    Tokenizer(#[from] TokenizerError),
    /// A file beside the weights cannot be read.
    #[error("{path}: {reason}")]
    File {
        /// Which.
        path: String,
        /// Why.
        reason: String,
    },
}

/// What turns text into tokens and back.
#[derive(Debug, Clone)]
pub struct Vocabulary {
    /// The tokenizer; its end-of-answer tokens include those of generation_config.json.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template, or why there is none.
    pub template: Result<Arc<ChatTemplate>, TemplateError>,
}

/// The vocabulary of a model; `None` when its files hold no tokenizer at all.
///
/// # Errors
/// [`VocabularyError`] when there is one that cannot be used.
pub fn vocabulary(model: &OpenModel) -> Result<Option<Vocabulary>, VocabularyError> {
    match model.checkpoint.container {
        Container::Gguf => from_gguf(&model.checkpoint.meta),
        Container::Hf => from_folder(model),
    }
}

fn from_gguf(meta: &Meta) -> Result<Option<Vocabulary>, VocabularyError> {
    let key = |k: &str| format!("tokenizer.ggml.{k}");
    let Some(model) = meta.opt_str(&key("model"))? else { return Ok(None) };
    // (llama.cpp writes either.)
    if matches!(model, "none" | "no_vocab") {
        return Ok(None);
    }
    let strings = |k: &str| -> Result<Vec<String>, MetaError> {
        let list = meta.opt_list(&key(k))?.unwrap_or_default();
        collect(list, &key(k), "a list of strings", |v| v.as_str().map(str::to_owned))
    };
    let scores = meta.opt_list(&key("scores"))?.unwrap_or_default();
    let types = meta.opt_list(&key("token_type"))?.unwrap_or_default();
    let charsmap = meta.opt_list(&key("precompiled_charsmap"))?.unwrap_or_default();
    let id = |k: &str| meta.opt_u32(&key(&format!("{k}_token_id")));
    let vocab = GgufVocab {
        model: model.to_owned(),
        pre: meta.opt_str(&key("pre"))?.map(str::to_owned),
        tokens: strings("tokens")?,
        merges: strings("merges")?,
        scores: collect(scores, &key("scores"), "a list of numbers", |v| {
            v.as_f64().map(|x| x as f32)
        })?,
        token_types: collect(types, &key("token_type"), "a list of integers", |v| {
            v.as_f64().map(|x| x as i32)
        })?,
        bos: id("bos")?,
        eos: id("eos")?,
        eot: id("eot")?,
        eom: id("eom")?,
        unk: id("unknown")?,
        sep: id("seperator")?, // as GGUF spells it
        pad: id("padding")?,
        fim: marks(meta)?,
        add_bos: meta.opt_bool(&key("add_bos_token"))?,
        add_eos: meta.opt_bool(&key("add_eos_token"))?,
        add_space_prefix: meta.opt_bool(&key("add_space_prefix"))?,
        remove_extra_whitespaces: meta.opt_bool(&key("remove_extra_whitespaces"))?,
        charsmap: collect(charsmap, &key("precompiled_charsmap"), "a list of bytes", |v| {
            u8::try_from(v.as_u32()?).ok()
        })?,
        escape_whitespaces: meta.opt_bool(&key("escape_whitespaces"))?,
        whitespace_as_suffix: meta.opt_bool(&key("treat_whitespace_as_suffix"))?,
        keys: meta
            .iter()
            .map(|(key, _)| key)
            .filter_map(|k| k.strip_prefix("tokenizer."))
            .map(str::to_owned)
            .collect(),
    };
    let tokenizer = Arc::new(Tokenizer::from_gguf(vocab)?);
    let template = template(&gguf_templates(meta)?, tokenizer.template_tokens()).map(Arc::new);
    Ok(Some(Vocabulary { tokenizer, template }))
}

/// The tokens that a GGUF file names for filling in the middle, by newer or older keys.
fn marks(meta: &Meta) -> Result<[Option<u32>; 4], MetaError> {
    let id = |key: &str| meta.opt_u32(&format!("tokenizer.ggml.{key}_token_id"));
    let either = |new, old| Ok::<_, MetaError>(id(new)?.or(id(old)?));
    Ok([
        either("fim_pre", "prefix")?,
        either("fim_suf", "suffix")?,
        either("fim_mid", "middle")?,
        id("fim_pad")?,
    ])
}

/// Chat templates of a GGUF file by name; the one that has none is the default.
fn gguf_templates(meta: &Meta) -> Result<Vec<(String, String)>, MetaError> {
    const KEY: &str = "tokenizer.chat_template";
    let mut templates = Vec::new();
    let named = meta.iter().filter_map(|(key, _)| key.strip_prefix(KEY)?.strip_prefix('.'));
    let keys = std::iter::once(("default", KEY.to_owned()));
    for (name, key) in keys.chain(named.map(|name| (name, format!("{KEY}.{name}")))) {
        if let Some(source) = meta.opt_str(&key)? {
            templates.push((name.to_owned(), source.to_owned()));
        }
    }
    Ok(templates)
}

fn collect<T>(
    list: &[MetaValue],
    key: &str,
    expected: &'static str,
    read: impl Fn(&MetaValue) -> Option<T>,
) -> Result<Vec<T>, MetaError> {
    let item = |(i, v)| {
        read(v).ok_or_else(|| MetaError::Type {
            key: format!("{key}[{i}]"),
            expected,
            found: "another type".into(),
        })
    };
    list.iter().enumerate().map(item).collect()
}

fn from_folder(model: &OpenModel) -> Result<Option<Vocabulary>, VocabularyError> {
    let Some(path) = &model.sidecars.tokenizer else { return Ok(None) };
    let json = |path: &Path| -> Result<Json, VocabularyError> {
        serde_json::from_slice(&read(path)?)
            .map_err(|e| VocabularyError::File { path: shown(path), reason: e.to_string() })
    };
    let settings = match &model.sidecars.tokenizer_config {
        Some(path) => json(path)?,
        None => Json::Null,
    };
    let mut config = HfTokenizerConfig::from_json(&settings);
    if let Some(path) = &model.sidecars.special_tokens_map {
        config.add_special_tokens_map(&json(path)?);
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    let added = folder.join("added_tokens.json");
    if added.is_file() {
        config.add_added_tokens(&json(&added)?);
    }
    let file = read(path)?;
    let mut tokenizer = match path.file_name().and_then(|name| name.to_str()) {
        Some("tekken.json") => Tokenizer::from_tekken(&file)?,
        Some("tiktoken.model") => Tokenizer::from_tiktoken(&file, &settings)?,
        _ => Tokenizer::from_json(&file, &config)?,
    };
    tokenizer.extend_eos_ids(&eos_ids(&model.checkpoint.meta));
    let mut templates = Vec::new();
    match &model.sidecars.chat_template {
        Some(path) if path.extension().is_some_and(|e| e == "json") => {
            templates = HfTokenizerConfig::from_json(&json(path)?).chat_templates;
        }
        Some(path) => templates.push(("default".to_owned(), text(path)?)),
        None => {}
    }
    templates.extend(further_templates(&folder.join("additional_chat_templates"))?);
    // Templates in files of their own take the place of those in tokenizer_config.json.
    let templates = if templates.is_empty() { &config.chat_templates } else { &templates };
    let template = template(templates, tokenizer.template_tokens()).map(Arc::new);
    Ok(Some(Vocabulary { tokenizer: Arc::new(tokenizer), template }))
}

/// Most templates beside the default one.
const MAX_TEMPLATES: usize = 64;

/// The templates of a folder, named as their files.
fn further_templates(folder: &Path) -> Result<Vec<(String, String)>, VocabularyError> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Ok(Vec::new()) };
    let paths = entries.flatten().map(|entry| entry.path());
    let mut paths: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|e| e == "jinja")).collect();
    paths.sort_unstable();
    paths.truncate(MAX_TEMPLATES);
    let named = |path: &std::path::PathBuf| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok((name, text(path)?))
    };
    paths.iter().map(named).collect()
}

fn text(path: &Path) -> Result<String, VocabularyError> {
    Ok(String::from_utf8_lossy(&read(path)?).into_owned())
}

/// End tokens of config.json and generation_config.json: a number or a list.
fn eos_ids(meta: &Meta) -> Vec<u32> {
    let mut ids = Vec::new();
    for key in ["eos_token_id", "generation_config.eos_token_id"] {
        match meta.get(key) {
            Some(MetaValue::List(list)) => ids.extend(list.iter().filter_map(MetaValue::as_u32)),
            Some(value) => ids.extend(value.as_u32()),
            None => {}
        }
    }
    ids
}

fn read(path: &Path) -> Result<Vec<u8>, VocabularyError> {
    let fail = |reason: String| VocabularyError::File { path: shown(path), reason };
    let len = std::fs::metadata(path).map_err(|e| fail(e.to_string()))?.len();
    if len > MAX_FILE_BYTES {
        return Err(fail(format!("{len} bytes, more than {MAX_FILE_BYTES}")));
    }
    std::fs::read(path).map_err(|e| fail(e.to_string()))
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// The model's own template, or the one its vocabulary tells.
fn template(
    named: &[(String, String)],
    tokens: TemplateTokens,
) -> Result<ChatTemplate, TemplateError> {
    match named {
        [] => ChatTemplate::fallback(tokens),
        named => ChatTemplate::named(named, tokens),
    }
}
