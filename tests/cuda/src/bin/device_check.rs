//! The checks of the CUDA device on a real GPU, a section to a process: `device_check list` names them. Leaves with 0, 1 where
//! something is wrong, 3 where there is no GPU. Recordings are read from $TOKENMILL_GOLDEN (tests/golden).

use std::process::ExitCode;

use tokenmill_backend::DeviceError;
use tokenmill_backend::reference::ReferenceDevice;
use tokenmill_cuda::{CudaDevice, OpenError};
use tokenmill_cuda_tests::{attention, checks, products, sampled};
use tokenmill_device_tests::conformance::{cases, difference, outputs};
use tokenmill_golden_tests::Golden;
use tokenmill_ir::Mode;

const SECTIONS: [&str; 8] = [
    "conformance",
    "products",
    "attention",
    "sampling",
    "rows-alone",
    "recordings",
    "again",
    "lost",
];

fn main() -> ExitCode {
    let section = std::env::args().nth(1).unwrap_or_default();
    if section == "list" {
        println!("{}", SECTIONS.join("\n"));
        return ExitCode::SUCCESS;
    }
    let device = match CudaDevice::open(0) {
        Ok(device) => device,
        Err(error @ (OpenError::NoDriver | OpenError::NoDevice(..))) => {
            println!("no GPU: {error}");
            return ExitCode::from(3);
        }
        Err(error) => {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    };
    match run(&section, &device) {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(wrong) => {
            println!("WRONG: {wrong}");
            ExitCode::FAILURE
        }
    }
}

fn run(section: &str, device: &CudaDevice) -> Result<String, String> {
    match section {
        // As near as the suite asks: exp and tanh are the card's own.
        "conformance" => {
            let in_f32 = checks::conformance(device, Mode::F32, &|case| case.tolerance);
            in_f32.map(|n| format!("{n} cases"))
        }
        "sampling" => sampled::check(device, 4).map(|n| format!("{n} tokens, equal bits")),
        "products" => products::check(device, "").map(|n| format!("{n} cases by tensor cores")),
        "attention" => {
            let count = attention::check(device, "")?;
            let runs = attention::runs(device)?;
            attention::crowd(device)?;
            Ok(format!("{count} cases by tensor cores, {runs} in other runs: equal bits"))
        }
        "rows-alone" => {
            let block = tokenmill_cuda::BLOCK_TOKENS;
            let plain = checks::rows_alone(device, Mode::F32, &checks::of_kinds(block))?;
            let atoms = checks::rows_alone(device, Mode::Bf16, &products::cases(block))?;
            let experts = checks::rows_alone(device, Mode::Bf16, &products::experts(block))?;
            let count = plain + atoms + experts;
            Ok(format!("{count} cases, equal bits"))
        }
        "recordings" => {
            let all = Golden::all();
            let wrong: Vec<String> =
                all.iter().filter_map(|arch| checks::recording(arch, device).err()).collect();
            match wrong.len() {
                0 => Ok(format!("{} recordings", all.len())),
                n => Err(format!("{n} of {}:\n{}", all.len(), wrong.join("\n"))),
            }
        }
        "again" => {
            let all = checks::of_kinds(tokenmill_cuda::BLOCK_TOKENS);
            let told = all.iter().try_for_each(|case| checks::again(device, case));
            told.map(|()| format!("{} cases as graphs, caches resized", all.len()))
        }
        "lost" => lost(device),
        "short" => short(device),
        other => Err(format!("no section {other}: {}, short", SECTIONS.join(", "))),
    }
}

/// A kernel reads where nothing is; everything is made again in this process.
fn lost(device: &CudaDevice) -> Result<String, String> {
    let all = checks::of_kinds(tokenmill_cuda::BLOCK_TOKENS);
    let case = all.first().ok_or("no cases")?;
    let run = || outputs(device, Mode::F32, case).map_err(|e| format!("{}: {e}", case.name));
    let before = run()?;
    match device.lose() {
        Err(DeviceError::Lost { reason, .. }) => println!("{reason}"),
        other => return Err(format!("not lost: {other:?}")),
    }
    if run()? != before {
        return Err("other results after it was opened again".into());
    }
    Ok("lost, opened again, the same results".into())
}

/// A case of every kind once, for tools that slow kernels down.
fn short(device: &CudaDevice) -> Result<String, String> {
    let block = tokenmill_cuda::BLOCK_TOKENS;
    let all = checks::of_kinds(block);
    for case in &all {
        let failed = |e: DeviceError| format!("{}: {e}", case.name);
        let found = outputs(device, Mode::F32, case).map_err(failed)?;
        let truth = outputs(&ReferenceDevice::new(block), Mode::F32, case).map_err(failed)?;
        for (found, truth) in found.iter().zip(&truth) {
            let error = difference(&found.rows, &truth.rows)?;
            if error.nmse > case.tolerance.nmse || error.max > case.tolerance.max {
                return Err(format!("{}: {error:?}", case.name));
            }
        }
    }
    let tiles = attention::check(device, "9 heads on 3")?;
    Ok(format!("{} of {} cases, {tiles} by tensor cores", all.len(), cases(block).len()))
}
