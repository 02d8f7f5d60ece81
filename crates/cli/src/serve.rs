//! `serve`: the HTTP server over models that are named, or over all that are here.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokenmill_engine::{Engine, KeepAlive};
use tokenmill_server::{
    ImageHosts, KvEvents, Needs, Present, ServeError, ServerConfig, StateConfig, Stock, TlsFiles,
    serve as listen,
};

use crate::args::{LogFormat, Serve};
use crate::failure::{Failure, size, tell};
use crate::loader::{ModelLoader, Named, named};
use crate::model::House;
use crate::{alias, key, otlp, reload};

/// Open files where the system does not say how many there may be.
const FEW_FILES: u64 = 1024;
/// Open files beside the connections: the model, the cache on disk.
const OTHER_FILES: u64 = 128;
/// Where Ollama's clients ask.
const OLLAMA_PORT: u16 = 11434;
/// How long a model stays after its last answer, unless somebody says otherwise, seconds.
const KEEP_S: f64 = 300.0;

/// Runs the command.
pub fn serve(args: Serve) -> Result<(), Failure> {
    let keys = key::place(args.keys.as_deref())?;
    let config = config(&args, &keys)?;
    if let Some(line) = shown_in_processes() {
        tell!("{line}");
    }
    let named = names(&args)?;
    let taking_turns = named.is_empty() || args.keep_alive.is_some();
    let house = match taking_turns {
        true => House::shared(&args.machine, args.slots)?,
        false => House::of(&args.models, &args.machine, args.slots)?,
    };
    let House { host, memory_bytes } = house;
    let cap_bytes = host.ledger().models_bytes();
    let aliases = alias::read(&args.alias)?;
    let mut loader = ModelLoader::new(&args, host, named.clone());
    for (Named { listed, .. }, bytes) in named.iter().zip(memory_bytes) {
        loader.within(&listed.id, bytes);
    }
    let pinned = pinned(&args, &loader, taking_turns)?;
    let mut lines = Vec::new();
    let first = if named.is_empty() { pinned.clone() } else { ids(&named) };
    let present = present(&loader, &first, &pinned, &mut lines)?;
    if taking_turns {
        let (count, cap) = (loader.known().len(), size(cap_bytes));
        lines.push(format!("{count} models within {cap}, loaded when they are asked for"));
    }
    // Whoever reads lines of JSON reads nothing else.
    let say = |line: &str| match args.log_format {
        LogFormat::Json => tracing::info!(target: "tokenmill_server", "{line}"),
        LogFormat::Plain => tell!("{line}"),
    };
    let engines: Vec<_> = present.iter().map(|one| one.model.engine.clone()).collect();
    // A draft model comes and goes with its model, which nobody has measured together.
    let fixed = args.machine.draft_model.is_some();
    let loader = Arc::new(loader);
    let stock = Stock {
        present,
        pinned,
        aliases,
        loader: (!fixed).then(|| Arc::clone(&loader) as _),
        cap_bytes,
        keep: args.keep_alive.unwrap_or(KeepAlive::Seconds(KEEP_S)),
    };
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let ended = listen(config, stock, |address, control| {
        lines.iter().for_each(|line| say(line));
        reload::watch(args.clone(), keys, control);
        say(&format!("listening on {scheme}://{address} (OpenAI API at /v1)"));
        if args.ollama {
            let address = SocketAddr::new(address.ip(), OLLAMA_PORT);
            say(&format!("listening on {scheme}://{address} too (Ollama's API at /api)"));
        }
    });
    engines.iter().for_each(Engine::shut_down);
    ended.map_err(|e| refused(&e))
}

fn ids(named: &[Named]) -> Vec<String> {
    named.iter().map(|named| named.listed.id.clone()).collect()
}

/// Models that stay: those of the command line, unless they take turns, and those of --pin.
fn pinned(args: &Serve, loader: &ModelLoader, taking_turns: bool) -> Result<Vec<String>, Failure> {
    let known = loader.known();
    let mut pinned = if taking_turns { Vec::new() } else { ids(&known) };
    for name in &args.pin {
        let is_meant =
            |n: &&Named| n.listed.id == *name || n.name == *name || n.listed.aliases.contains(name);
        let Some(found) = known.iter().find(is_meant) else {
            let detail = format!("served: {}", ids(&known).join(", "));
            return Err(Failure::new(format!("cannot pin {name}"), detail).fix("tokenmill list"));
        };
        pinned.push(found.listed.id.clone());
    }
    pinned.sort_unstable();
    pinned.dedup();
    Ok(pinned)
}

/// Loads the first models, pinned ones before others, as long as there is memory for them.
fn present(
    loader: &ModelLoader,
    first: &[String],
    pinned: &[String],
    lines: &mut Vec<String>,
) -> Result<Vec<Present>, Failure> {
    let mut present: Vec<Present> = Vec::new();
    let (must, may): (Vec<_>, Vec<_>) = first.iter().partition(|id| pinned.contains(id));
    for id in must.into_iter().chain(may) {
        let must = pinned.contains(id);
        if !must {
            let needs = loader.measured(id).map_err(|e| e.told(id))?;
            let ledger = loader.host.ledger();
            let held = ledger.all_bytes() - ledger.free_bytes();
            let free = ledger.models_bytes().saturating_sub(held);
            if needs.bytes > free {
                let (needed, free) = (size(needs.bytes), size(free));
                lines.push(format!("{id} is not loaded yet: it takes {needed}, {free} are free"));
                continue;
            }
        }
        let begin = Instant::now();
        let (model, said) = loader.start(id, &|| true).map_err(|e| e.told(id))?;
        let bytes = model.engine.stats().memory.sum();
        let load_s = begin.elapsed().as_secs_f64();
        let floor_bytes = loader.measured(id).map_or(bytes, |needs| needs.floor_bytes.min(bytes));
        let needs = Needs { bytes, floor_bytes, load_s };
        present.push(Present { model, needs });
        lines.extend(said);
    }
    Ok(present)
}

/// The models of the command line as clients call them.
fn names(args: &Serve) -> Result<Vec<Named>, Failure> {
    for (asked, option) in [
        (args.served_model_name.is_some(), "--served-model-name"),
        (args.kv_events.is_some(), "--kv-events"),
        (args.machine.draft_model.is_some(), "--draft-model"),
    ] {
        if args.models.len() != 1 && asked {
            let detail = match args.models.len() {
                0 => "all that are here are to be served".to_owned(),
                several => format!("{several} are to be served"),
            };
            return Err(Failure::new(format!("{option} is for one model"), detail)
                .fix("leave it out, or serve one model"));
        }
    }
    let mut all: Vec<Named> = Vec::new();
    for model in &args.models {
        let one = named(model, args.served_model_name.as_deref());
        if all.iter().any(|other| other.listed.id == one.listed.id) {
            return Err(Failure::new("two models of one name", one.listed.id)
                .fix("name each once; clients ask for them by name"));
        }
        all.push(one);
    }
    Ok(all)
}

/// What is said of who may come in and how it is told; `keys`: the file of keys.
pub fn gate_of(args: &Serve, keys: &Path) -> Result<ServerConfig, Failure> {
    let mut config = ServerConfig::new(SocketAddr::new(args.host, args.port));
    config.also = args.ollama.then_some(OLLAMA_PORT).into_iter().collect();
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
    config.audit.clone_from(&args.audit);
    let files = args.tls_cert.clone().zip(args.tls_key.clone());
    config.tls = files.map(|(certificate, key)| TlsFiles { certificate, key });
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
    config.seal_key = crate::seal::key(args.seal_key.as_deref(), args.no_seal_key)?;
    config.state = args.state.clone().map(|dir| {
        let kept = StateConfig::new(dir);
        StateConfig { ttl: args.state_ttl.unwrap_or(kept.ttl), ..kept }
    });
    // As many as the system lets one program have, but for what else it opens.
    let files = rlimit::increase_nofile_limit(u64::MAX).unwrap_or(FEW_FILES);
    let connections = usize::try_from(files.saturating_sub(OTHER_FILES)).unwrap_or(usize::MAX);
    config.limits.connections = config.limits.connections.min(connections.max(1));
    // Long prompts may keep a quarter of the processors busy, and short ones another.
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    config.limits.preparing = (processors / 2).clamp(2, 16);
    config.receipts.clone_from(&args.receipts);
    config.limits.receipts_bytes = (args.receipts_gb * (1u64 << 30) as f64) as u64;
    config.fetch_images = args.fetch_images.then(|| ImageHosts { named: args.fetch_host.clone() });
    config.traces = args.otlp.as_deref().map(otlp::traces).transpose()?;
    config.kv_events = args.kv_events.map(|bind| KvEvents {
        bind,
        replay: args.kv_events_replay,
        topic: args.kv_events_topic.clone(),
    });
    config.timeouts.drain = Duration::from_secs(args.drain_timeout);
    config.timeouts.load = Duration::from_secs(args.load_timeout);
    config.check().map_err(|e| refused(&e))?;
    Ok(config)
}

fn refused(error: &ServeError) -> Failure {
    let failure = Failure::new("cannot serve", error);
    match error {
        ServeError::PublicWithoutKey { .. } | ServeError::WideWithoutKey { .. } => {
            failure.fix("tokenmill key add NAME")
        }
        ServeError::BadState { .. } => failure.fix("--state with a folder that can be written"),
        ServeError::AliasOfNothing { .. } => failure.fix("serve it too, or leave the alias out"),
        ServeError::Bind { bind, source } => match source.kind() {
            std::io::ErrorKind::AddrNotAvailable => {
                failure.fix("an address of this machine, such as --host 127.0.0.1")
            }
            std::io::ErrorKind::PermissionDenied => failure.fix("add --port 8080"),
            _ if bind.port() == OLLAMA_PORT => {
                failure.fix("stop the Ollama that runs there, or leave --ollama out")
            }
            // 0: any that is free.
            _ => failure.fix(format!("add --port {}", bind.port().wrapping_add(1))),
        },
        _ => failure,
    }
}
