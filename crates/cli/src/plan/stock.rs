//! The models that are planned with, as the planner's data.

use std::path::{Path, PathBuf};

use tokenmill_backend::Device;
use tokenmill_engine::describe::{Described, describe};
use tokenmill_engine::load::{LoadFailure, LoadOptions, Lowered, read};
use tokenmill_engine::planner::factors::Arithmetic;
use tokenmill_engine::planner::{self, Model};
use tokenmill_ir::KvFormat;

use super::args::Plan;
use crate::args::Kv;
use crate::bench::arithmetic_of;
use crate::failure::{Failure, tell};
use crate::{devices, model, store};

/// Formats of keys and values that may be chosen where none is asked for.
const FORMATS: [(KvFormat, &str); 3] =
    [(KvFormat::Int16, "int16"), (KvFormat::Int8, "int8"), (KvFormat::K8V4, "k8v4")];

/// Models, and where their files are.
pub struct Stock<'a> {
    args: &'a Plan,
    device: &'a dyn Device,
    memory_bytes: u64,
    /// Models by their data, those that are here with their files.
    pub models: Vec<Model>,
    paths: Vec<(String, PathBuf)>,
}

impl<'a> Stock<'a> {
    /// Those named, fetched if need be, or all that are here.
    pub fn new(args: &'a Plan, device: &'a dyn Device, memory_bytes: u64) -> Result<Self, Failure> {
        let (models, paths) = Default::default();
        let mut stock = Self { args, device, memory_bytes, models, paths };
        for name in &args.models {
            let path = model::locate(name)?;
            stock.add(name, &path).map_err(|e| Failure::load(name, e))?;
        }
        if args.models.is_empty() {
            stock.add_all();
        }
        Ok(stock)
    }

    /// Adds all that are here, and those that could be pulled.
    pub fn add_all(&mut self) {
        let entries = store::entries();
        let is_here = |name: &str| {
            let mut names = entries.iter().flat_map(|e| [Some(e.model.name.as_str()), e.alias]);
            names.any(|n| n.is_some_and(|n| n.eq_ignore_ascii_case(name)))
        };
        let known = planner::known().into_iter().filter(|m| !is_here(&m.name));
        let known: Vec<Model> = known.filter(|m| !self.args.models.contains(&m.name)).collect();
        for entry in &entries {
            let name = entry.alias.unwrap_or(&entry.model.name);
            if self.paths.iter().any(|(n, path)| n == name || *path == entry.model.path) {
                continue;
            }
            if let Err(error) = self.add(name, &entry.model.path) {
                tell!("note: {name} is passed over: {error}");
            }
        }
        self.models.extend(known);
    }

    fn add(&mut self, name: &str, path: &Path) -> Result<(), LoadFailure> {
        let described = self.describe(name, path, self.args.machine.ctx)?;
        self.models.push(described);
        self.paths.push((name.to_owned(), path.to_owned()));
        Ok(())
    }

    fn describe(&self, name: &str, path: &Path, ctx: Option<u32>) -> Result<Model, LoadFailure> {
        let options = LoadOptions { context: ctx, ..self.options() };
        let lowered = read(path, options.kv)?;
        let (_, arithmetic) = arithmetic_of(&lowered.program, self.args.machine.mode);
        let asked = [(options.kv, model::kv_name(options.kv))];
        let is_free = matches!(self.args.machine.kv, None | Some(Kv::Int16));
        let formats = if is_free { &FORMATS[..] } else { &asked[..] };
        let told = Described {
            name,
            files: lowered.program.weight_bytes(),
            arithmetic: match arithmetic {
                devices::Arithmetic::Int8 => Arithmetic::Int8,
                devices::Arithmetic::Bf16 => Arithmetic::Bf16,
                devices::Arithmetic::F32 => Arithmetic::F32,
            },
            formats,
        };
        describe(&lowered, self.device, &options, &told)
    }

    /// Describes a model that is here again, for the context that was chosen: buffers depend on it.
    pub fn describe_again(&mut self, name: &str, context: u32) -> Result<(), Failure> {
        let Some((_, path)) = self.paths.iter().find(|(n, _)| n == name) else { return Ok(()) };
        let told = |e| Failure::load(name, e);
        let described = self.describe(name, &path.clone(), Some(context)).map_err(told)?;
        if let Some(model) = self.models.iter_mut().find(|m| m.name == name) {
            *model = described;
        }
        Ok(())
    }

    /// A model that is here, read.
    pub fn read(&self, name: &str) -> Result<Option<Lowered>, Failure> {
        let Some((_, path)) = self.paths.iter().find(|(n, _)| n == name) else { return Ok(None) };
        let read = read(path, self.options().kv);
        read.map(Some).map_err(|e| Failure::load(name, e))
    }

    /// What a load would be asked.
    pub fn options(&self) -> LoadOptions {
        let options = model::options(&self.args.machine, self.device, self.args.slots);
        LoadOptions { memory_bytes: self.memory_bytes, ..options }
    }
}
