//! `render`: the prompt that a request becomes, for people who debug templates.

use std::io::{Read, Write};

use tokenmill_engine::load::{read, vocabulary_of};
use tokenmill_engine::packaged::packaged;
use tokenmill_ir::KvFormat;
use tokenmill_server::{Words, prompt_of};

use crate::args::Dialect;
use crate::failure::{Failure, printable, tell};
use crate::model;

/// Longest request, bytes: what the server takes.
const MOST: u64 = 32 << 20;

/// Reads a request from the standard input and writes its prompt, or the ids of its tokens.
pub fn render(name: &str, dialect: Dialect, ids: bool) -> Result<(), Failure> {
    let path = model::locate(name)?;
    let cannot = |e: &dyn std::fmt::Display| Failure::new(format!("cannot render for {name}"), e);
    let model = read(&path, KvFormat::Int16).map_err(|e| Failure::load(name, e))?;
    let found = vocabulary_of(&path, &model.files).map_err(|e| cannot(&e))?;
    let found = found.ok_or_else(|| cannot(&"its files have no tokenizer"))?;
    let template = found.template.map_err(|e| cannot(&e))?;
    let mut request = Vec::new();
    let taken = std::io::stdin().lock().take(MOST).read_to_end(&mut request);
    taken.map_err(|e| Failure::new("cannot read the request", e))?;
    if request.iter().all(u8::is_ascii_whitespace) {
        return Err(Failure::new("there is no request", "the standard input is empty")
            .fix(format!("tokenmill render {name} < REQUEST.json")));
    }
    let system = packaged(&model.files.checkpoint).system;
    let words = match dialect {
        Dialect::Chat => Words::Chat,
        Dialect::Responses => Words::Responses,
        Dialect::Messages => Words::Messages,
        Dialect::Ollama => Words::Ollama,
    };
    let rendered = prompt_of(&template, system.as_deref(), words, &request);
    let (prompt, warnings) = rendered.map_err(|e| cannot(&printable(&e)))?;
    for warning in warnings {
        tell!("warning: {}", printable(&warning));
    }
    let written = match ids {
        true => {
            format!("{:?}\n", found.tokenizer.encode_rendered(&prompt).map_err(|e| cannot(&e))?)
        }
        false => prompt.text().into_owned(),
    };
    let mut out = std::io::stdout().lock();
    out.write_all(written.as_bytes()).and_then(|()| out.flush()).map_err(Failure::output)
}
