//! `bench`: how fast a model is here and what the machine would allow.

pub mod args;
mod compare;
mod limits;
mod line;
pub use model::arithmetic_of;
mod model;
mod plot;
mod report;
mod serve;

use crate::failure::Failure;
use args::{Bench, Other};

/// Runs the command.
pub fn bench(args: Bench) -> Result<(), Failure> {
    if let Some(Other::Serve(serve)) = &args.other {
        return serve::serve(serve);
    }
    if args.limits {
        return limits::print(&args);
    }
    if let Some(file) = &args.plot {
        compare::check_plot(file)?;
    }
    // Peers first: a file that cannot be read should not cost a run.
    let peers = args.compare.iter().map(|file| compare::read(file)).collect::<Result<_, _>>()?;
    let lines = match (&args.from, &args.model) {
        (Some(file), _) => compare::read(&file.display().to_string())?.lines,
        (None, Some(model)) => model::measure(model, &args)?,
        (None, None) => return Err(Failure::new("nothing to measure", "no model was named")),
    };
    let table = compare::Table::new(lines, peers)?;
    table.print(args.json)?;
    match &args.plot {
        Some(file) => table.plot(file),
        None => Ok(()),
    }
}
