//! `serve`: the HTTP server over one model.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokenmill_server::{ServeError, ServedModel, ServerConfig, serve as listen};

use crate::args::Serve;
use crate::failure::{Failure, size};
use crate::model;

/// Runs the command.
pub fn serve(args: Serve) -> Result<(), Failure> {
    let mut config = ServerConfig::new(SocketAddr::new(args.host, args.port));
    config.api_keys = args.api_key;
    config.timeouts.drain = Duration::from_secs(args.drain_timeout);
    config.check().map_err(|e| refused(&e))?;
    let served = model::start(&args.model, &args.machine, args.slots, args.queue)?;
    let Some(tokenizer) = served.tokenizer.clone() else {
        return Err(Failure::new(
            format!("cannot serve {}", args.model),
            "its files have no tokenizer",
        ));
    };
    let name = args.served_model_name.unwrap_or_else(|| short(&args.model));
    let context = served.engine.longest();
    let model = ServedModel {
        names: vec![name.clone()],
        engine: served.engine.clone(),
        tokenizer,
        template: served.template.ok().map(Arc::new),
        context,
        created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
    };
    let (fit, caps) = (served.fit, served.caps);
    let ended = listen(config, vec![model], |address| {
        eprintln!(
            "{name} on {} · context {context} · weights {}, cache {} ({} a token)",
            caps.name,
            size(fit.weight_bytes),
            size(fit.cache_bytes),
            size(fit.token_bytes),
        );
        eprintln!("listening on http://{address} (OpenAI API at /v1)");
    });
    served.engine.shut_down();
    ended.map_err(|e| refused(&e))
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
        ServeError::PublicWithoutKey { .. } => failure.fix("add --api-key SECRET"),
        ServeError::Bind { bind, .. } => failure.fix(format!("add --port {}", bind.port() + 1)),
        _ => failure,
    }
}
