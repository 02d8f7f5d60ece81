//! `serve`: the HTTP server over one model.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokenmill_server::{ServeError, ServedModel, ServerConfig, serve as listen};

use crate::args::{LogFormat, Serve};
use crate::failure::{Failure, size, tell};
use crate::model;

/// Open files where the system does not say how many there may be.
const FEW_FILES: u64 = 1024;
/// Open files beside the connections: the model, the cache on disk.
const OTHER_FILES: u64 = 128;

/// Runs the command.
pub fn serve(args: Serve) -> Result<(), Failure> {
    let config = config(&args)?;
    let cap_bytes = (args.kv_disk_gb * (1u64 << 30) as f64) as u64;
    let disk = args.kv_dir.as_deref().map(|folder| (folder, cap_bytes));
    let defaults = model::defaults(&args.model)?;
    let mut machine = args.machine.clone();
    machine.ctx = machine.ctx.or(defaults.context);
    let mut served = model::start_with(&args.model, &machine, args.slots, args.queue, disk)?;
    model::warn(&served, served.template.as_ref());
    model::settle(&args.model, defaults, &mut served);
    let Some(tokenizer) = served.tokenizer.clone() else {
        return Err(Failure::new(
            format!("cannot serve {}", args.model),
            "its files have no tokenizer",
        ));
    };
    if let Some(longest) = args.max_wait {
        served.engine.limit_wait(longest);
    }
    let name = args.served_model_name.unwrap_or_else(|| short(&args.model));
    let context = served.engine.longest();
    let model = ServedModel {
        names: vec![name.clone()],
        engine: served.engine.clone(),
        tokenizer,
        template: served.template.map(Arc::new),
        context,
        defaults: served.defaults,
        created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
    };
    let sampling =
        (served.engine.vocab() > 0).then(|| model.default_sampling().line(Some(context)));
    let (fit, caps) = (served.fit, served.caps);
    let kv_line = match (&args.kv_dir, &served.disk) {
        (None, _) => None,
        (Some(folder), Ok(())) => {
            let log = served.engine.stats().disk.unwrap_or_default().log;
            let (folder, used, cap) = (folder.display(), size(log.bytes), size(cap_bytes));
            Some(format!(
                "prompt cache in {folder}: {used} of {cap}, {} runs of this model",
                log.records
            ))
        }
        (Some(_), Err(error)) => Some(format!("without a prompt cache on disk: {error}")),
    };
    // Whoever reads lines of JSON reads nothing else.
    let say = |line: &str| match args.log_format {
        LogFormat::Json => tracing::info!(target: "tokenmill_server", "{line}"),
        LogFormat::Plain => tell!("{line}"),
    };
    let ended = listen(config, vec![model], |address| {
        say(&format!(
            "{name} on {} · context {context} · weights {}, cache {} ({} a token)",
            caps.name,
            size(fit.weight_bytes),
            size(fit.cache_bytes),
            size(fit.token_bytes),
        ));
        if let Some(line) = &sampling {
            say(&format!("requests that say nothing: {line}"));
        }
        if let Some(line) = &kv_line {
            say(line);
        }
        say(&format!("listening on http://{address} (OpenAI API at /v1)"));
    });
    served.engine.shut_down();
    ended.map_err(|e| refused(&e))
}

/// What the command line says of the server.
fn config(args: &Serve) -> Result<ServerConfig, Failure> {
    let mut config = ServerConfig::new(SocketAddr::new(args.host, args.port));
    config.api_keys.clone_from(&args.api_key);
    config.metrics_key.clone_from(&args.metrics_key);
    // As many as the system lets one program have, but for what else it opens.
    let files = rlimit::increase_nofile_limit(u64::MAX).unwrap_or(FEW_FILES);
    let connections = usize::try_from(files.saturating_sub(OTHER_FILES)).unwrap_or(usize::MAX);
    config.limits.connections = config.limits.connections.min(connections.max(1));
    // Long prompts may keep a quarter of the processors busy, and short ones another.
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    config.limits.preparing = (processors / 2).clamp(2, 16);
    config.allowed_origins.clone_from(&args.allow_origin);
    config.allowed_hosts.clone_from(&args.allow_host);
    config.strict = args.strict;
    config.access_log = !args.quiet;
    config.timeouts.drain = Duration::from_secs(args.drain_timeout);
    config.check().map_err(|e| refused(&e))?;
    Ok(config)
}

/// The last part of a path without its ending, or the name as it is.
fn short(name: &str) -> String {
    match Path::new(name).file_stem() {
        Some(stem) if Path::new(name).exists() => stem.to_string_lossy().into_owned(),
        _ => name.to_owned(),
    }
}

fn refused(error: &ServeError) -> Failure {
    let failure = Failure::new("cannot serve", error);
    match error {
        ServeError::PublicWithoutKey { .. } | ServeError::WideWithoutKey { .. } => {
            failure.fix("add --api-key SECRET")
        }
        ServeError::Bind { bind, source } => match source.kind() {
            std::io::ErrorKind::AddrNotAvailable => {
                failure.fix("an address of this machine, such as --host 127.0.0.1")
            }
            std::io::ErrorKind::PermissionDenied => failure.fix("add --port 8080"),
            // 0: any that is free.
            _ => failure.fix(format!("add --port {}", bind.port().wrapping_add(1))),
        },
        _ => failure,
    }
}
