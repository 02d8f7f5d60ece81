//! What operators ask: is it alive, is it ready, what is it, what does it do.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use prometheus::proto::MetricType;
use serde_json::json;

use crate::metrics::{ModelPage, page, sample};
use crate::models;
use crate::shared::{Phase, Shared};

/// 200 as long as the process answers and no model's device hangs in a step.
pub async fn live(State(shared): State<Arc<Shared>>) -> Response {
    let stuck = shared.residents.there().iter().find_map(|m| m.served.engine.stuck());
    if let Some(age) = stuck {
        let body = Json(json!({ "status": "stuck", "seconds": age.as_secs() }));
        return (StatusCode::SERVICE_UNAVAILABLE, body).into_response();
    }
    Json(json!({ "status": "ok" })).into_response()
}

/// 200 while new requests are taken, 503 once the server drains.
pub async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    match shared.phase() {
        Phase::Serving => Json(json!({ "status": "ready" })).into_response(),
        Phase::Draining | Phase::Stopping => {
            let body = Json(json!({ "status": "draining" }));
            (StatusCode::SERVICE_UNAVAILABLE, body).into_response()
        }
    }
}

/// Name and version.
pub async fn version() -> Response {
    Json(json!({ "name": "tokenmill", "version": env!("CARGO_PKG_VERSION") })).into_response()
}

/// Counters in the Prometheus text format.
pub async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let one = |m: &'static str| [(CONTENT_TYPE, m)];
    let there = shared.residents.there();
    let pages: Vec<ModelPage<'_>> = there
        .iter()
        .map(|m| ModelPage {
            model: m.served.name(),
            engine: m.served.engine.stats(),
            block_tokens: m.served.engine.block_tokens(),
            server: &m.metrics,
        })
        .collect();
    let unknown = shared.unknown_members.load(Ordering::Relaxed);
    let uptime = shared.started.elapsed();
    let mut page = page(&pages, &shared.responses, shared.in_flight(), unknown, uptime);
    models::count(&shared.residents, &mut page);
    let (name, open) = ("tokenmill_http_connections", shared.guests.count() as f64);
    page.add(name, MetricType::GAUGE, "Open connections.", vec![sample(&[], open)]);
    (one("text/plain; version=0.0.4; charset=utf-8"), page.text()).into_response()
}
