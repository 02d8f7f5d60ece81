//! Receipts: everything that an answer's bytes depend on, so that they can be had again, and the digest
//! of what came.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use axum::http::HeaderMap;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokenmill_engine::{Request, Usage};
use tokenmill_output::Piece;

use crate::ask::Choice;
use crate::config::ServeError;
use crate::prepare::Prepared;
use crate::shared::{Model, Shared, unix_seconds};
use crate::visit::Visit;

/// Asks for a receipt with the answer, as the member `tokenmill_receipt` does.
pub const HEADER: &str = "x-tokenmill-receipt";
/// The seed of a request that is repeated.
pub const SEED: &str = "x-tokenmill-seed";
/// Headers that change how a request is read.
const READ_BY: [&str; 1] = ["anthropic-beta"];

/// What of a request's head is about receipts.
#[derive(Debug, Default)]
pub struct Wish {
    /// It asks for one.
    pub is_told: bool,
    /// The seed it is to be sampled with, whatever its body says.
    pub seed: Option<u64>,
    /// Headers that its meaning depends on.
    headers: Vec<(&'static str, String)>,
}

impl Wish {
    /// That of a request with these headers.
    pub fn of(headers: &HeaderMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        Self {
            is_told: text(HEADER).is_some_and(|value| matches!(value, "1" | "true")),
            seed: text(SEED).and_then(|value| value.parse().ok()),
            headers: READ_BY.iter().filter_map(|&n| Some((n, text(n)?.to_owned()))).collect(),
        }
    }
}

/// A receipt whose answer is still to come.
#[derive(Debug)]
pub struct Receipt {
    value: Value,
    /// The request itself, where receipts are stored.
    body: Option<Value>,
}

/// A digest in hexadecimal digits.
fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Begins the receipt of a request, whose body is `asked`.
pub async fn begin(
    shared: &Shared,
    (model, prepared): (&Model, &Prepared),
    (wish, asked): (&Wish, Vec<u8>),
    visit: &Visit,
) -> Receipt {
    let key = key(shared, model).await;
    let first = prepared.requests.first();
    let prompts = prepared.requests.iter().map(|request| {
        let bytes: Vec<u8> = request.prompt.iter().flat_map(|id| id.to_le_bytes()).collect();
        json!({ "tokens": request.prompt.len(), "sha256": hex(&bytes) })
    });
    let headers: serde_json::Map<_, _> =
        wish.headers.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    let value = json!({
        "receipt": 1,
        "id": &*visit.seen.id.name,
        "created": unix_seconds(),
        "tokenmill": env!("CARGO_PKG_VERSION"),
        "model": key,
        "request": {
            "path": visit.seen.path,
            "headers": headers,
            "sha256": hex(&asked),
        },
        "prompts": prompts.collect::<Vec<_>>(),
        "sampling": first.map(sampling),
    });
    let stores = shared.receipts.is_some();
    let body = stores.then(|| serde_json::from_slice(&asked).unwrap_or_default());
    Receipt { value, body }
}

/// What of the model's side the bytes depend on.
async fn key(shared: &Shared, model: &Model) -> Value {
    let engine = model.served.engine.clone();
    // (Files are read for it, the first time.)
    let weights = tokio::task::spawn_blocking(move || {
        engine.identity().and_then(|identity| identity.weights().map(str::to_owned))
    });
    let weights = weights.await.ok().flatten();
    let name = model.served.name();
    let content = shared.residents.found(Some(name)).map(|told| told.listed.digest);
    let template = model.served.template.as_ref().ok().map(|t| hex(t.source().as_bytes()));
    let identity = model.served.engine.identity();
    json!({
        "name": name,
        "weights": weights,
        "content": content.filter(|digest| !digest.is_empty()),
        "program": identity.map(|identity| identity.program.as_str()),
        "template": template,
        "device": identity.map(|identity| identity.device.as_str()),
        "numerics": identity.map(|identity| identity.numerics.as_str()),
        "mode": identity.map(|identity| identity.mode.as_str()),
        "kv": identity.map(|identity| identity.kv.as_str()),
    })
}

/// How a request is sampled and what its answer is held to. The digest is of all of it.
fn sampling(request: &Request) -> Value {
    let Request { sampling, reading, .. } = request;
    let tools = reading.as_ref().map(|reading| hex(format!("{:?}", reading.tools).as_bytes()));
    let plain = Request {
        prompt: Vec::new(),
        inputs: None,
        prediction: Vec::new(),
        timeline: None,
        account: 0,
        salt: 0,
        priority: 0,
        timeout: None,
        lease: None,
        lease_percent: 0,
        draft: None,
        ..request.clone()
    };
    json!({
        "seed": sampling.seed,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "choices": request.choices,
        "max_tokens": request.max_tokens,
        "held": request.held.is_some(),
        "tools": tools,
        "sha256": hex(format!("{plain:?}").as_bytes()),
    })
}

impl Receipt {
    /// The receipt of an answer.
    pub fn end(mut self, choices: &[Choice], usage: Usage) -> (Value, Option<Value>) {
        let told: Vec<Value> = choices.iter().map(of_choice).collect();
        let all: String = told.iter().filter_map(|choice| choice["sha256"].as_str()).collect();
        self.value["answer"] = json!({
            "sha256": hex(all.as_bytes()),
            "completion_tokens": usage.completion_tokens,
            "choices": told,
        });
        let stored = self.body.map(|body| {
            let mut stored = self.value.clone();
            stored["request"]["body"] = body;
            stored
        });
        (self.value, stored)
    }
}

/// The digest of a choice: of what it thought, said and called, and how it ended; not of how that came
/// in pieces.
fn of_choice(choice: &Choice) -> Value {
    let (mut digest, mut last) = (Sha256::new(), 0u8);
    for piece in &choice.pieces {
        let kind = match piece {
            Piece::Text(_) => b'T',
            Piece::Reasoning(_) => b'R',
            Piece::CallStart { .. } => b'C',
            Piece::CallArguments(_) => b'A',
            Piece::CallEnd => b'E',
        };
        let text = match piece {
            Piece::CallStart { name } => name.as_str(),
            piece => piece.text(),
        };
        if text.is_empty() && !matches!(kind, b'C' | b'E') {
            continue;
        }
        if kind != last || matches!(kind, b'C' | b'E') {
            digest.update([0, kind]);
        }
        digest.update(text.as_bytes());
        last = kind;
    }
    let finish = choice.finish.as_ref().map(|reason| format!("{reason:?}"));
    digest.update([0, b'F']);
    digest.update(finish.as_deref().unwrap_or_default().as_bytes());
    let sha256: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    json!({ "sha256": sha256, "finish": finish })
}

/// Notes a receipt for who asks for the request later, and stores it where that is wanted.
pub fn keep(shared: &Arc<Shared>, visit: &Visit, receipt: &Value, stored: Option<Value>) {
    visit.told().receipt = Some(receipt.clone());
    let Some((store, stored)) = shared.receipts.clone().zip(stored) else { return };
    let id = &visit.seen.id;
    let ticket = format!("{:016x}", id.ticket);
    let file = match id.name.ends_with(&ticket) {
        true => format!("{}.json", id.name),
        false => format!("{}-{ticket}.json", id.name),
    };
    let name = Arc::clone(&id.name);
    let write = move || {
        if let Err(error) = store.put(&file, &stored) {
            let folder = store.folder.display();
            tracing::error!(id = &*name, %folder, %error, "a receipt is lost");
        }
    };
    // (Not awaited: an answer is not held up by a disk.)
    drop(tokio::task::spawn_blocking(write));
}

/// The folder where receipts are stored, for its owner only: they hold what clients sent. Beyond so many
/// bytes the oldest go.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    cap_bytes: u64,
    bytes: Mutex<u64>,
}

impl Store {
    /// Makes the folder where there is none.
    ///
    /// # Errors
    /// [`ServeError::BadReceipts`].
    pub fn open(folder: &Path, cap_bytes: u64) -> Result<Self, ServeError> {
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        let folder = folder.to_owned();
        let opened = builder.create(&folder).and_then(|()| prune(&folder, cap_bytes));
        let bad = |source| ServeError::BadReceipts { path: folder.clone(), source };
        let bytes = Mutex::new(opened.map_err(bad)?);
        Ok(Self { folder, cap_bytes, bytes })
    }

    /// Stores one more.
    fn put(&self, file: &str, receipt: &Value) -> std::io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let text = format!("{}\n", serde_json::to_string_pretty(receipt)?);
        let path = self.folder.join(file);
        let written = options.open(&path).and_then(|mut file| file.write_all(text.as_bytes()));
        written.inspect_err(|_| {
            let _ = std::fs::remove_file(&path); // half of one is none
        })?;
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        *bytes += text.len() as u64;
        if *bytes > self.cap_bytes {
            *bytes = prune(&self.folder, self.cap_bytes)?;
        }
        Ok(())
    }
}

/// Whether a file is called as receipts are: its name ends with the digits of a ticket.
fn is_receipt(path: &Path) -> bool {
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let digits = stem.len().checked_sub(16).and_then(|at| stem.get(at..));
    let is_ticket = digits.is_some_and(|digits| u64::from_str_radix(digits, 16).is_ok());
    is_ticket && path.extension().is_some_and(|end| end == "json")
}

/// Deletes the oldest receipts where they have more bytes than they may, down to nine tenths of it, so that
/// this is rare; the last one stays. How many bytes they have then.
fn prune(folder: &Path, cap_bytes: u64) -> std::io::Result<u64> {
    let mut files: Vec<(SystemTime, PathBuf, u64)> = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let (path, about) = (entry.path(), entry.metadata()?);
        if about.is_file() && is_receipt(&path) {
            files.push((about.modified()?, path, about.len()));
        }
    }
    files.sort_unstable();
    files.reverse(); // the oldest last
    let mut bytes: u64 = files.iter().map(|(.., len)| len).sum();
    let most = if bytes > cap_bytes { cap_bytes - cap_bytes / 10 } else { bytes };
    let mut deleted = 0u64;
    while bytes > most && files.len() > 1 {
        let Some((_, path, len)) = files.pop() else { break };
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => (bytes, deleted) = (bytes - len, deleted + 1),
        }
    }
    if deleted > 0 {
        let folder = folder.display();
        tracing::info!(deleted, bytes, %folder, "the oldest receipts were deleted");
    }
    Ok(bytes)
}

/// Parts of a receipt, where they stand and what they are called.
const PARTS: [(&str, &str); 14] = [
    ("/request/sha256", "the request's body"),
    ("/tokenmill", "the version of tokenmill"),
    ("/model/weights", "the model's weights"),
    ("/model/content", "the model's files as they were fetched"),
    ("/model/program", "what is computed (the model's configuration)"),
    ("/model/template", "the chat template"),
    ("/model/device", "the class of device"),
    ("/model/numerics", "the version of the numerics"),
    ("/model/mode", "the mode of arithmetic"),
    ("/model/kv", "the KV format"),
    ("/prompts", "the prompt's tokens"),
    ("/sampling/tools", "the tools"),
    ("/sampling", "how it is sampled and what it is held to"),
    ("/answer/sha256", "the answer"),
];

/// What a second answer's receipt has otherwise than the first one's: names of parts with both values.
/// Parts that one of them does not know are not compared.
pub fn differences(before: &Value, now: &Value) -> Vec<(&'static str, String, String)> {
    let mut found = Vec::new();
    for (pointer, name) in PARTS {
        let known = |receipt: &Value| receipt.pointer(pointer).filter(|v| !v.is_null()).cloned();
        let Some((before, now)) = known(before).zip(known(now)) else { continue };
        if before != now {
            found.push((name, before.to_string(), now.to_string()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenmill_engine::StopReason;

    #[test]
    fn a_digest_is_of_what_came_and_not_of_its_pieces() {
        let digest = |pieces: &[Piece], finish: StopReason| {
            let choice =
                Choice { pieces: pieces.to_vec(), finish: Some(finish), ..Choice::default() };
            of_choice(&choice)["sha256"].clone()
        };
        let text = |text: &str| Piece::Text(text.to_owned());
        let end = || StopReason::EndOfText;
        let whole = digest(&[text("abc")], end());
        assert_eq!(digest(&[text("a"), text(""), text("bc")], end()), whole);
        let thought = Piece::Reasoning("abc".to_owned());
        for other in [
            digest(&[text("abd")], end()),
            digest(&[thought], end()),
            digest(&[text("abc"), Piece::CallEnd], end()),
            digest(&[text("abc")], StopReason::Length),
        ] {
            assert_ne!(other, whole);
        }
    }

    #[test]
    fn the_oldest_receipts_go_and_no_other_file_does() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("receipts");
        let store = Store::open(&path, 1000).expect("a new folder");
        let other = path.join("notes.json");
        std::fs::write(&other, "x".repeat(5000)).expect("written");
        let name = |n: u64| format!("req-{n:016x}.json");
        let receipt = json!({ "text": "y".repeat(100) });
        let here = || -> Vec<u64> { (0..30).filter(|n| path.join(name(*n)).exists()).collect() };
        for n in 0..30 {
            store.put(&name(n), &receipt).expect("stored");
            let (here, each) =
                (here(), std::fs::metadata(path.join(name(n))).expect("there").len());
            let first = *here.first().expect("one");
            assert_eq!(here, (first..=n).collect::<Vec<_>>(), "the oldest go");
            assert!(here.len() as u64 * each <= 1000, "{here:?} of {each} bytes");
        }
        assert!(here().len() > 5, "{:?}", here());
        assert_eq!(std::fs::metadata(&other).expect("there").len(), 5000);
        // A smaller cap counts from the start on; one that fits nothing leaves the last one.
        Store::open(&path, 1).expect("the folder");
        assert_eq!(here(), [29]);
        assert!(Store::open(&other, 1000).is_err(), "it is no folder");
    }

    #[test]
    fn what_differs_is_named() {
        let before =
            json!({ "model": { "kv": "Int16", "weights": null }, "answer": { "sha256": "a" } });
        let now = json!({ "model": { "kv": "Int8", "weights": "x" }, "answer": { "sha256": "a" } });
        let found = differences(&before, &now);
        assert_eq!(found, [("the KV format", "\"Int16\"".to_owned(), "\"Int8\"".to_owned())]);
    }
}
