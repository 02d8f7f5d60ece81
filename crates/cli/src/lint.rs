//! `lint`: what is wrong with a model's tokenizer and chat template.

use std::io::Write;

use tokenmill_engine::load::{read, vocabulary_of};
use tokenmill_ir::KvFormat;
use tokenmill_text::{Finding, Severity, lint as findings};

use crate::failure::{Failure, printable};
use crate::model;

/// Runs the command; findings that spoil answers make it fail.
pub fn lint(name: &str, json: bool) -> Result<(), Failure> {
    let path = model::locate(name)?;
    let cannot = |e: &dyn std::fmt::Display| Failure::new(format!("cannot check {name}"), e);
    let model = read(&path, KvFormat::Int16).map_err(|e| Failure::load(name, e))?;
    let Some(found) = vocabulary_of(&path, &model.files).map_err(|e| cannot(&e))? else {
        return Err(cannot(&"its files have no tokenizer"));
    };
    let mut list = findings(&found.tokenizer, found.template.as_deref());
    if model.program.vocab == 0 {
        // Encoders give no answers that a token could end.
        list.retain(|finding| finding.code != "no_eos");
    }
    let mut out = std::io::stdout().lock();
    for finding in &list {
        writeln!(out, "{}", line(finding, json)).map_err(Failure::output)?;
    }
    let errors = list.iter().filter(|f| f.severity == Severity::Error).count();
    match errors {
        0 if list.is_empty() && !json => writeln!(out, "nothing found").map_err(Failure::output),
        0 => Ok(()),
        n => Err(Failure::new(format!("{name} has faults"), format!("{n} of them"))),
    }
}

fn line(finding: &Finding, json: bool) -> String {
    let severity = match finding.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Note => "note",
    };
    let Finding { code, message, .. } = finding;
    let message = &printable(message);
    match json {
        true => serde_json::json!({ "severity": severity, "code": code, "message": message })
            .to_string(),
        false => format!("{severity}: {message} ({code})"),
    }
}
