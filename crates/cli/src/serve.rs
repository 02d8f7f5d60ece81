//! `serve`: the HTTP server over one model or several.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokenmill_engine::Engine;
use tokenmill_server::{ServeError, ServedModel, ServerConfig, TlsFiles, serve as listen};

use crate::args::{LogFormat, Serve};
use crate::failure::{Failure, size, tell};
use crate::model::{self, House, Limits};
use crate::{key, reload};

/// Open files where the system does not say how many there may be.
const FEW_FILES: u64 = 1024;
/// Open files beside the connections: the model, the cache on disk.
const OTHER_FILES: u64 = 128;

/// Runs the command.
pub fn serve(args: Serve) -> Result<(), Failure> {
    let keys = key::place(args.keys.as_deref())?;
    let config = config(&args, &keys)?;
    if let Some(line) = shown_in_processes() {
        tell!("{line}");
    }
    let names = names(&args)?;
    let house = House::of(&args.models, &args.machine, args.slots)?;
    let (mut models, mut lines, mut engines) = (Vec::new(), Vec::new(), Vec::new());
    for (number, name) in names.into_iter().enumerate() {
        let (model, said) = start(&args, &house, number, name)?;
        engines.push(model.engine.clone());
        models.push(model);
        lines.extend(said);
    }
    // Whoever reads lines of JSON reads nothing else.
    let say = |line: &str| match args.log_format {
        LogFormat::Json => tracing::info!(target: "tokenmill_server", "{line}"),
        LogFormat::Plain => tell!("{line}"),
    };
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let ended = listen(config, models, |address, control| {
        lines.iter().for_each(|line| say(line));
        reload::watch(args.clone(), keys, control);
        say(&format!("listening on {scheme}://{address} (OpenAI API at /v1)"));
    });
    engines.iter().for_each(Engine::shut_down);
    ended.map_err(|e| refused(&e))
}

/// The names in the API.
fn names(args: &Serve) -> Result<Vec<String>, Failure> {
    let several = args.models.len() > 1;
    for (asked, option) in [
        (args.served_model_name.is_some(), "--served-model-name"),
        (args.machine.draft_model.is_some(), "--draft-model"),
    ] {
        if several && asked {
            let detail = format!("{} are to be served", args.models.len());
            return Err(Failure::new(format!("{option} is for one model"), detail)
                .fix("leave it out, or serve one model"));
        }
    }
    let mut names: Vec<String> = Vec::new();
    for model in &args.models {
        let name = args.served_model_name.clone().unwrap_or_else(|| short(model));
        if names.contains(&name) {
            return Err(Failure::new("two models of one name", name)
                .fix("name each once; clients ask for them by name"));
        }
        names.push(name);
    }
    Ok(names)
}

/// A model that answers, and what is said of it.
fn start(
    args: &Serve,
    house: &House,
    number: usize,
    name: String,
) -> Result<(ServedModel, Vec<String>), Failure> {
    let wanted = &args.models[number];
    let defaults = model::defaults(wanted)?;
    let mut machine = args.machine.clone();
    machine.ctx = machine.ctx.or(defaults.context);
    let count = args.models.len();
    let cap_bytes = (args.kv_disk_gb * (1u64 << 30) as f64) as u64 / count as u64;
    // Several models have a folder each.
    let folder = args.kv_dir.as_ref();
    let folder = folder.map(|f| if count > 1 { f.join(name.replace('/', "_")) } else { f.clone() });
    let disk = folder.as_deref().map(|folder| (folder, cap_bytes));
    let limits = Limits { sequences: args.slots, queue: args.queue };
    let names = (wanted.as_str(), name.as_str());
    let mut served = model::start_in(house, number, names, &machine, limits, disk)?;
    model::warn(&served, served.template.as_ref());
    model::settle(wanted, defaults, &mut served);
    let Some(tokenizer) = served.tokenizer.clone() else {
        return Err(Failure::new(format!("cannot serve {wanted}"), "its files have no tokenizer"));
    };
    if let Some(longest) = args.max_wait {
        served.engine.limit_wait(longest);
    }
    let context = served.engine.longest();
    let (fit, caps) = (served.fit, &served.caps);
    let mut lines = vec![format!(
        "{name} on {} · context {context} · weights {}, cache {} ({} a token)",
        caps.name,
        size(fit.weight_bytes),
        size(fit.cache_bytes),
        size(fit.token_bytes),
    )];
    let kv_line = folder.map(|folder| match &served.disk {
        Ok(()) => {
            let log = served.engine.stats().disk.unwrap_or_default().log;
            let (folder, used, cap) = (folder.display(), size(log.bytes), size(cap_bytes));
            format!("prompt cache in {folder}: {used} of {cap}, {} runs of this model", log.records)
        }
        Err(error) => format!("without a prompt cache on disk: {error}"),
    });
    let model = ServedModel {
        names: vec![name],
        engine: served.engine,
        tokenizer,
        template: served.template.map(Arc::new),
        context,
        defaults: served.defaults,
        created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
    };
    if model.engine.vocab() > 0 {
        let line = model.default_sampling().line(Some(context));
        lines.push(format!("requests that say nothing: {line}"));
    }
    lines.extend(kv_line);
    Ok((model, lines))
}

/// What is said of who may come in; `keys`: the file of keys.
pub fn gate_of(args: &Serve, keys: &Path) -> Result<ServerConfig, Failure> {
    let mut config = ServerConfig::new(SocketAddr::new(args.host, args.port));
    config.api_keys.clone_from(&args.api_key);
    config.keys = key::read(keys)?;
    if args.keys.is_some() && config.keys.is_none() {
        return Err(Failure::new("there is no such file of keys", keys.display())
            .fix(format!("tokenmill key add NAME --keys {}", keys.display())));
    }
    config.metrics_key.clone_from(&args.metrics_key);
    config.allowed_origins.clone_from(&args.allow_origin);
    config.allowed_hosts.clone_from(&args.allow_host);
    config.strict = args.strict;
    config.access_log = !args.quiet;
    Ok(config)
}

/// Other users of a machine read the command lines of its programs.
fn shown_in_processes() -> Option<&'static str> {
    let shown = std::env::args_os()
        .any(|word| word.to_str().is_some_and(|word| word.starts_with("--api-key")));
    shown.then_some(
        "warning: other users of this machine can read --api-key in the list of processes; \
         TOKENMILL_API_KEY or `tokenmill key add NAME` hide it",
    )
}

/// What is said of the server.
fn config(args: &Serve, keys: &Path) -> Result<ServerConfig, Failure> {
    let mut config = gate_of(args, keys)?;
    let files = args.tls_cert.clone().zip(args.tls_key.clone());
    config.tls = files.map(|(certificate, key)| TlsFiles { certificate, key });
    config.seal_key = crate::seal::key(args.seal_key.as_deref(), args.no_seal_key)?;
    // As many as the system lets one program have, but for what else it opens.
    let files = rlimit::increase_nofile_limit(u64::MAX).unwrap_or(FEW_FILES);
    let connections = usize::try_from(files.saturating_sub(OTHER_FILES)).unwrap_or(usize::MAX);
    config.limits.connections = config.limits.connections.min(connections.max(1));
    // Long prompts may keep a quarter of the processors busy, and short ones another.
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    config.limits.preparing = (processors / 2).clamp(2, 16);
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
            failure.fix("tokenmill key add NAME")
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
