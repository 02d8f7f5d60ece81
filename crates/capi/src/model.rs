//! Models: opened, measured with, freed.

use std::ffi::c_char;

use tokenmill::serde_json::json;
use tokenmill::{Model, options_of};

use crate::border::{across, free, json, known, text, told};

/// A model. Freed, it lives on for the chats and streams that are of it.
#[allow(non_camel_case_types)]
pub struct tokenmill_model(pub(crate) Model);

/// Opens the model of a path or a name, fetched if it is not here. `options` is NULL or a JSON object of `context`,
/// `threads`, `memory_bytes`, `device`, `parallel`, `queue`, `kv`, `mode`, `fetch`. NULL: it failed.
///
/// # Safety
/// Texts end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokenmill_open(
    name: *const c_char,
    options: *const c_char,
) -> *mut tokenmill_model {
    across(std::ptr::null_mut(), || {
        // SAFETY: by the caller's promise.
        let (name, options) = unsafe { (text(name, "name")?, json(options, "options")?) };
        let options = options_of(options.unwrap_or_else(|| json!({}))).map_err(told)?;
        let model = Model::open_with(name, &options).map_err(told)?;
        Ok(Box::into_raw(Box::new(tokenmill_model(model))))
    })
}

/// Frees a model.
///
/// # Safety
/// It was opened here and not freed, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokenmill_model_free(model: *mut tokenmill_model) {
    // SAFETY: by the caller's promise.
    unsafe { free(model) }
}

/// Most tokens of prompt and answer together; 0: it failed.
///
/// # Safety
/// The model is one, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokenmill_context(model: *const tokenmill_model) -> u32 {
    // SAFETY: by the caller's promise.
    across(0, || Ok(unsafe { known(model, "model") }?.0.context()))
}

/// Numbers in a vector of `tokenmill_embed`; 0: it failed.
///
/// # Safety
/// The model is one, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokenmill_width(model: *const tokenmill_model) -> u32 {
    // SAFETY: by the caller's promise.
    across(0, || Ok(unsafe { known(model, "model") }?.0.width()))
}

/// Texts of a caller's array.
///
/// # Safety
/// `texts` has `count` texts that end with a zero byte.
unsafe fn list<'a>(texts: *const *const c_char, count: usize) -> Result<Vec<&'a str>, String> {
    if texts.is_null() && count > 0 {
        return Err("texts is NULL".to_owned());
    }
    // SAFETY: by the caller's promise.
    (0..count).map(|at| unsafe { text(*texts.add(at), "a text") }).collect()
}

/// A vector for each text, one behind another into `out`, which has room for `room` numbers. 0, or -1: it failed.
///
/// # Safety
/// The model is one or NULL, `texts` has `count` texts, `out` has room for `room` numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokenmill_embed(
    model: *const tokenmill_model,
    texts: *const *const c_char,
    count: usize,
    out: *mut f32,
    room: usize,
) -> i32 {
    across(-1, || {
        // SAFETY: by the caller's promise.
        let (model, texts) = unsafe { (known(model, "model")?, list(texts, count)?) };
        let vectors = model.0.embed(texts).map_err(told)?.concat();
        // SAFETY: by the caller's promise.
        unsafe { give(&vectors, out, room) }
    })
}

/// How much each of `count` documents has to do with a query, into `out`. 0, or -1: it failed.
///
/// # Safety
/// The model is one or NULL, `query` is a text, `documents` has `count` texts, `out` room for as many numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokenmill_rerank(
    model: *const tokenmill_model,
    query: *const c_char,
    documents: *const *const c_char,
    count: usize,
    out: *mut f32,
) -> i32 {
    across(-1, || {
        // SAFETY: by the caller's promise.
        let (model, query, documents) =
            unsafe { (known(model, "model")?, text(query, "query")?, list(documents, count)?) };
        let ranks = model.0.rerank(query, documents).map_err(told)?;
        // SAFETY: by the caller's promise.
        unsafe { give(&ranks, out, count) }
    })
}

/// Writes numbers into the caller's memory.
///
/// # Safety
/// `out` is null or has room for `room` numbers.
unsafe fn give(numbers: &[f32], out: *mut f32, room: usize) -> Result<i32, String> {
    if numbers.len() > room || (out.is_null() && !numbers.is_empty()) {
        let needed = numbers.len();
        return Err(format!("out has room for {room} numbers, {needed} are needed"));
    }
    if !numbers.is_empty() {
        // SAFETY: there is room for them, and nothing of ours lies there.
        unsafe { std::ptr::copy_nonoverlapping(numbers.as_ptr(), out, numbers.len()) };
    }
    Ok(0)
}
