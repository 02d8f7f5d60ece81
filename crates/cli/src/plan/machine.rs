//! The machine that is planned for: this one, or one that a file describes. What this one can do at most is measured
//! once and kept beside the models (ceilings.json).

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokenmill_backend::Device;
use tokenmill_engine::planner::Machine;
use tokenmill_engine::planner::factors::Instructions;
use tokenmill_engine::planner::machine::{Gpu, Limits};

use super::args::Plan;
use crate::devices::{self, Arithmetic, Level};
use crate::failure::Failure;
use crate::{memory, store};

/// The machine of the command line.
pub fn machine(args: &Plan, device: &dyn Device) -> Result<Machine, Failure> {
    let mut machine = match &args.described {
        Some(file) => described(file)?,
        None => this_one(args, device),
    };
    machine.available = args.machine.mem.or(machine.available);
    Ok(machine)
}

fn described(file: &Path) -> Result<Machine, Failure> {
    let shown = file.display();
    let failed = |e: String| Failure::new(format!("cannot read the machine of {shown}"), e);
    let text = std::fs::read_to_string(file).map_err(|e| failed(e.to_string()))?;
    serde_json::from_str(&text).map_err(|e| {
        failed(e.to_string()).fix("tokenmill plan --json shows this machine under \"machine\"")
    })
}

fn this_one(args: &Plan, device: &dyn Device) -> Machine {
    let threads = devices::threads(&args.machine);
    let available = devices::available_bytes(&args.machine, device);
    Machine {
        name: "this machine".to_owned(),
        system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        cores: u32::try_from(threads).unwrap_or(u32::MAX),
        instructions: instructions(device),
        memory: memory::total_bytes().unwrap_or(available),
        available: Some(available),
        limits: ceilings(args, device, threads),
        disk: None,
        gpus: devices::gpus().into_iter().map(|(name, memory)| Gpu { name, memory }).collect(),
        peers: 0,
    }
}

/// The kernel class in use, which ends a device's name.
fn instructions(device: &dyn Device) -> Instructions {
    let name = device.caps().name.rsplit(' ').next().unwrap_or_default();
    serde_json::from_value(json!(name)).unwrap_or(Instructions::Scalar)
}

fn file() -> Option<PathBuf> {
    Some(store::own_folder()?.join("ceilings.json"))
}

/// What was kept, where it is of this device and so many threads; else measured and kept.
fn ceilings(args: &Plan, device: &dyn Device, threads: usize) -> Limits {
    let of = json!({"device": device.caps().name, "threads": threads});
    let kept = file().and_then(|file| std::fs::read_to_string(file).ok());
    let kept = kept.and_then(|text| serde_json::from_str::<Value>(&text).ok());
    let same = kept.filter(|kept| kept["of"] == of && !args.measure);
    if let Some(limits) = same.and_then(|kept| serde_json::from_value(kept["limits"].clone()).ok())
    {
        return limits;
    }
    if args.memory_only {
        return Limits::default();
    }
    let rate = |arithmetic| Some(devices::op_limit(threads, arithmetic).rate.best / 1e12);
    let read = devices::read_limit(threads, Level::Dram);
    let limits = Limits {
        read_gb_s: read.map(|r| r.rate.best / 1e9),
        int8_tops: rate(Arithmetic::Int8),
        bf16_tops: rate(Arithmetic::Bf16),
        f32_tops: rate(Arithmetic::F32),
    };
    keep(&json!({"of": of, "limits": limits}));
    limits
}

/// Keeps them; a folder that cannot be written only costs time.
fn keep(ceilings: &Value) {
    let Some(file) = file() else { return };
    let part = file.with_extension("part");
    let written = file.parent().map(std::fs::create_dir_all).transpose();
    let written = written.and_then(|_| std::fs::write(&part, format!("{ceilings:#}\n")));
    if let Err(error) = written.and_then(|()| std::fs::rename(&part, &file)) {
        tracing::debug!("{} is not kept: {error}", file.display());
    }
}
