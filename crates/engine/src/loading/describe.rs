//! A model's files as the planner's data: what its program computes, and what a device says it takes.

use std::hash::{DefaultHasher, Hash, Hasher};

use tokenmill_backend::Device;
use tokenmill_ir::op::{Experts as ExpertsOp, Op};
use tokenmill_ir::{GroupKind, KvFormat, Load, Program};
use tokenmill_models::lower;
use tokenmill_text::Tokenizer;

use crate::door;
use crate::load::{LoadFailure, LoadOptions, Lowered, WeightBits, vocabulary_of, whole_texts};
use crate::plan::Needs;
use crate::planner::factors::Arithmetic;
use crate::planner::model::{Ability, Experts, Kv, Model};
use crate::sight::Seeing;

/// What is told of a model beside its files.
#[derive(Debug, Clone)]
pub struct Described<'a> {
    /// As commands take it.
    pub name: &'a str,
    /// Bytes of its files.
    pub files: u64,
    /// The arithmetic of most of its products.
    pub arithmetic: Arithmetic,
    /// Formats of keys and values that may be chosen, the best first, with their names.
    pub formats: &'a [(KvFormat, &'static str)],
}

/// Describes a model that was read, on a device; buffers are those of the options' context and sequences.
///
/// # Errors
/// What the device does not support; a vocabulary that cannot be used.
pub fn describe(
    model: &Lowered,
    device: &dyn Device,
    options: &LoadOptions,
    told: &Described<'_>,
) -> Result<Model, LoadFailure> {
    let path = model.path.clone();
    door::through(&path, || describe_inside(model, device, options, told))
}

fn describe_inside(
    model: &Lowered,
    device: &dyn Device,
    options: &LoadOptions,
    told: &Described<'_>,
) -> Result<Model, LoadFailure> {
    let Lowered { path, files, spec, program } = model;
    let mut options = whole_texts(options, spec, program);
    let seeing = Seeing::of((path, files, spec), device, &options);
    let (spec, program) = seeing.as_ref().map_or((spec, program), |s| (&s.spec, &s.program));
    options = seeing.as_ref().map_or_else(|| options.clone(), |s| s.options(&options));
    let encoder = seeing.as_ref().map(Seeing::memory).unwrap_or_default();
    let wide_weights = options.weights == WeightBits::Wide;
    let program = &Program { wide_weights, ..program.clone() };
    let needs = Needs::of(spec, program, device, &options)?;
    let mut kv = Vec::new();
    for &(format, name) in told.formats {
        let program = lower(spec, &files.checkpoint, format)?.program;
        let options = LoadOptions { kv: format, ..options.clone() };
        match Needs::of(spec, &program, device, &options) {
            Ok(needs) => kv.push(needs.kv(name)),
            // (A device may lack a format; another one will do.)
            Err(error) if kv.is_empty() => return Err(error.into()),
            Err(_) => {}
        }
    }
    let cost = |outputs, key_reads| program.cost(&Load { tokens: 1, outputs, key_reads });
    let (plain, output, key) = (cost(0, 0), cost(1, 0), cost(0, 1));
    let (experts, touched) = experts_of(program);
    let vocabulary = vocabulary_of(path, files)?;
    let mut abilities = Vec::new();
    if program.vocab > 0 {
        abilities.push(Ability::Text);
        let template = vocabulary.as_ref().and_then(|v| v.template.as_ref().ok());
        abilities.extend(template.map(|_| Ability::Chat));
        abilities.extend(template.filter(|t| t.has_tools()).map(|_| Ability::Tools));
    } else {
        abilities.push(if program.hidden > 1 { Ability::Embed } else { Ability::Rerank });
    }
    let context = match program.whole_sequences {
        true => options.step_tokens.min(spec.context),
        false => spec.context,
    };
    Ok(Model {
        name: told.name.to_owned(),
        here: true,
        files: told.files + seeing.as_ref().map_or(0, Seeing::file_bytes),
        weights: needs.weight_bytes() + encoder.weight_bytes,
        reads: (output.weight_bytes - touched).max(0.0).round() as u64,
        experts,
        kv,
        buffers: needs.buffer_bytes() + encoder.buffer_bytes,
        buffers_for: options.context,
        token_ops: plain.ops,
        output_ops: output.ops - plain.ops,
        key_ops: key.ops - plain.ops,
        arithmetic: told.arithmetic,
        vocab: program.vocab,
        vocabulary: vocabulary.map(|v| digest(&v.tokenizer)),
        context: context.max(1),
        block_tokens: device.caps().block_tokens,
        step_tokens: options.step_tokens,
        abilities,
        timed: None,
    })
}

/// Its experts, and the bytes of those that one token reads.
fn experts_of(program: &Program) -> (Option<Experts>, f64) {
    let (mut found, mut touched): (Option<Experts>, f64) = (None, 0.0);
    for op in &program.ops {
        let Op::Experts(ExpertsOp { route, gate, up, down, experts, .. }) = op else { continue };
        let bytes = |first: u32| program.weights[first as usize].stored_bytes();
        let each: u64 = [gate.0, up.0, down.0].into_iter().map(bytes).sum();
        let used = route.cols / 2;
        let all = found.get_or_insert(Experts { count: *experts, used, bytes: 0 });
        all.bytes += each * u64::from(*experts);
        touched += each as f64 * f64::from(used);
    }
    (found, touched)
}

/// The same for equal vocabularies.
fn digest(tokenizer: &Tokenizer) -> String {
    let mut hasher = DefaultHasher::new();
    for id in 0..tokenizer.vocab_size() as u32 {
        tokenizer.token_bytes(id).hash(&mut hasher);
    }
    format!("{:016x}", hasher.finish())
}

impl Needs {
    /// What sequences keep, by the planner's kinds.
    fn kv(&self, format: &str) -> Kv {
        let mut kv = Kv { format: format.to_owned(), token: 0, windows: Vec::new(), state: 0 };
        for (kind, block_bytes) in self.groups() {
            let token = block_bytes.div_ceil(u64::from(self.block_tokens().max(1)));
            match kind {
                GroupKind::Full => kv.token += token,
                GroupKind::Window { tokens } => kv.windows.push((tokens, token)),
                GroupKind::State => kv.state += block_bytes,
            }
        }
        kv
    }
}
