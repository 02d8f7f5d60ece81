//! `inspect`: metadata, tensors, spec and program of a model file.

use std::collections::BTreeMap;
use std::io::Write;

use tokenmill_engine::load::read;
use tokenmill_ir::{KvFormat, MetaValue};

use crate::args::Inspect;
use crate::failure::{Failure, printable, size};
use crate::model;

/// Runs the command.
pub fn inspect(args: &Inspect) -> Result<(), Failure> {
    let path = model::locate(&args.model)?;
    let lowered = read(&path, KvFormat::Int16).map_err(|e| Failure::load(&args.model, e))?;
    let mut text = Vec::new();
    let written = match (args.program, args.spec, args.tensors, args.meta) {
        (true, ..) => write!(text, "{}", lowered.program.dump()),
        (_, true, ..) => writeln!(text, "{:#?}", lowered.spec),
        (_, _, true, _) => tensors(&mut text, &lowered),
        (_, _, _, true) => meta(&mut text, &lowered),
        _ => summary(&mut text, &path, &lowered),
    };
    written.and_then(|()| std::io::stdout().write_all(&text)).map_err(Failure::output)
}

type Lowered = tokenmill_engine::load::Lowered;

fn summary(out: &mut Vec<u8>, path: &std::path::Path, lowered: &Lowered) -> std::io::Result<()> {
    let (spec, program) = (&lowered.spec, &lowered.program);
    let tensors = &lowered.files.checkpoint.tensors;
    let parameters: u64 = tensors.iter().map(|t| t.shape.iter().product::<u64>()).sum();
    let token: u64 = program.caches.iter().map(|c| c.unit_bytes()).sum();
    writeln!(out, "{}", path.display())?;
    writeln!(out, "architecture  {}", spec.arch)?;
    writeln!(out, "parameters    {:.1} M in {} tensors", parameters as f64 / 1e6, tensors.len())?;
    writeln!(out, "weights       {}", size(program.weight_bytes()))?;
    writeln!(out, "layers        {}, hidden {}", spec.layers.len(), spec.hidden)?;
    writeln!(out, "vocabulary    {}", spec.vocab)?;
    writeln!(out, "context       {} tokens", spec.context)?;
    writeln!(out, "cache         {} a token (int16)", size(token))?;
    writeln!(out, "program       {} ops", program.ops.len())?;
    let unknown = lowered.passed_over();
    if !unknown.is_empty() {
        let unknown = printable(&unknown.join(", "));
        writeln!(out, "passed over   {unknown} (nobody knows these keys)")?;
    }
    let mut formats: BTreeMap<&str, (usize, u64)> = BTreeMap::new();
    for t in tensors {
        let entry = formats.entry(t.format.name()).or_default();
        entry.0 += 1;
        entry.1 += t.extent.len;
    }
    for (name, (count, bytes)) in formats {
        writeln!(out, "  {name:<8} {count:5} tensors {:>11}", size(bytes))?;
    }
    Ok(())
}

fn tensors(out: &mut Vec<u8>, lowered: &Lowered) -> std::io::Result<()> {
    for t in &lowered.files.checkpoint.tensors {
        writeln!(out, "{:<8} {:>20} {}", t.format.name(), format!("{:?}", t.shape), t.name)?;
    }
    Ok(())
}

fn meta(out: &mut Vec<u8>, lowered: &Lowered) -> std::io::Result<()> {
    for (key, value) in lowered.files.checkpoint.meta.iter() {
        let text = match value {
            MetaValue::List(list) if list.len() > 8 => format!("a list of {}", list.len()),
            MetaValue::Str(s) => s.chars().take(200).collect::<String>().escape_debug().to_string(),
            other => format!("{other:?}"),
        };
        writeln!(out, "{key} = {text}")?;
    }
    Ok(())
}
