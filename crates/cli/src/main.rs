//! The `tokenmill` command: run, serve, measure and inspect models.

mod about;
mod alias;
mod answer;
mod args;
mod bench;
mod bundle;
mod chat;
mod choices;
mod config;
mod devices;
mod doctor;
mod eval;
mod explain;
mod failure;
mod image;
mod input;
mod inspect;
mod interrupt;
mod key;
mod launch;
mod lint;
mod loader;
mod model;
mod numbers;
mod otlp;
mod parse;
mod plan;
mod recipes;
mod reload;
mod remote;
mod render;
mod replay;
mod run;
mod running;
mod samplers;
mod score;
mod seal;
mod serve;
mod store;
mod top;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use args::{Args, Command, LogFormat};
use failure::{Failure, INTERRUPTED, tell};
use tokenmill::memory;

fn main() -> ExitCode {
    let args = match config::parse() {
        Ok(args) => args,
        Err(config::Unread::Line(error)) => error.exit(),
        Err(config::Unread::Setting(failure)) => {
            tell!("{failure}");
            return ExitCode::FAILURE;
        }
    };
    log(&args);
    survive_file_size_limits();
    tokenmill_engine::door::keep_quiet();
    match dispatch(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Closed) => ExitCode::SUCCESS,
        Err(Failure::Interrupted) => ExitCode::from(INTERRUPTED),
        Err(Failure::Ended(status)) => ExitCode::from(status),
        Err(failure) => {
            tell!("{failure}");
            ExitCode::FAILURE
        }
    }
}

/// A file that may not grow further (`ulimit -f`, `LimitFSIZE`) is a write that fails, as on a full
/// disk, and not the end of the process.
fn survive_file_size_limits() {
    #[cfg(unix)]
    {
        let seen = std::sync::Arc::default();
        if let Err(error) = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, seen) {
            tracing::warn!(%error, "a limit on the size of files will end the process");
        }
    }
}

/// Warnings, and what the server tells of its requests, go to the standard error.
fn log(args: &Args) {
    let level = if args.verbose {
        "debug"
    } else {
        "warn,tokenmill_server=info,rustls_platform_verifier=off"
    };
    let log = tracing_subscriber::fmt().with_env_filter(level).with_writer(std::io::stderr);
    match &args.command {
        Command::Serve(serve) if serve.log_format == LogFormat::Json => log.json().init(),
        _ => log.with_ansi(std::io::stderr().is_terminal()).init(),
    }
}

fn dispatch(args: Args) -> Result<(), Failure> {
    match args.command {
        Command::Run(run) => run::run(&run),
        Command::Serve(serve) => serve::serve(*serve),
        Command::Ps(args) => running::ps(&args),
        Command::Stop { model, running } => running::stop(&model, &running),
        Command::Top(args) => top::top(&args),
        Command::Explain(args) => explain::explain(&args),
        Command::Replay(args) => replay::replay(&args),
        Command::Bundle(args) => bundle::bundle(&args),
        Command::Launch(args) => launch::launch(&args),
        Command::Bench(bench) => bench::bench(*bench),
        Command::Score(score) => score::score(&score),
        Command::Eval(eval) => eval::eval(&eval),
        Command::Plan(plan) => plan::plan(&plan),
        Command::Inspect(inspect) => inspect::inspect(&inspect),
        Command::Parse(args) => parse::parse(&args),
        Command::Lint { model, json } => lint::lint(&model, json),
        Command::Render { model, dialect, ids } => render::render(&model, dialect, ids),
        Command::Pull { model } => store::pull(&model),
        Command::List { json } => store::list(json),
        Command::Show { model } => store::show(&model),
        Command::Rm { model } => store::rm(&model),
        Command::Verify { model } => store::verify(model.as_deref()),
        Command::Doctor { kv_dir } => doctor::doctor(kv_dir.as_deref()),
        Command::Key(command) => key::key(&command),
        Command::Config(args::Config::Show { command, json }) => {
            config::show(&command, args.config.as_deref(), json)
        }
        Command::Man { command, dir } => about::man(command.as_deref(), dir.as_deref()),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut args::command(), "tokenmill", &mut script);
            std::io::stdout().write_all(&script).map_err(Failure::output)
        }
    }
}
