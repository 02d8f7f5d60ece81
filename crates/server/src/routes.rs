//! The table of routes, and the router made of it. A route not marked open needs a key.

use std::sync::Arc;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, delete, get, post};
use tower_http::catch_panic::CatchPanicLayer;

use crate::ask::{Dialect, Read};
use crate::error::{ApiError, write_body};
use crate::fields::shown;
use crate::openai::conversations;
use crate::shared::Shared;
use crate::{
    access, answering, anthropic, fleet, health, llamacpp, models, ollama, openai, openapi, page,
    requests,
};

/// Who may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Everybody, also when keys are set.
    Open,
    /// Holders of a key, when keys are set.
    Keyed,
    /// Who runs the server: what it shows tells of all who use it.
    Operator,
}

/// A row of the table.
pub struct Route {
    /// Its only method.
    pub method: Method,
    /// Its path, in the router's notation.
    pub path: &'static str,
    /// Who may use it.
    pub access: Access,
    dialect: Dialect,
    job: Job,
}

/// What a route does.
enum Job {
    /// Anything.
    Handle(fn() -> MethodRouter<Arc<Shared>>),
    /// Answers requests that are read so.
    Answer(Read),
}

impl Route {
    /// What reads the body of its requests, where that is a reader alone.
    pub fn reader(&self) -> Option<Read> {
        match self.job {
            Job::Answer(read) => Some(read),
            Job::Handle(_) if self.method == Method::POST => {
                lines_of(self.path).map(|(read, _)| read)
            }
            Job::Handle(_) => None,
        }
    }

    fn handler(&self) -> MethodRouter<Arc<Shared>> {
        match self.job {
            Job::Handle(handler) => handler(),
            Job::Answer(read) => {
                post(move |State(shared): State<Arc<Shared>>, request: Request| {
                    answering::respond(shared, request, read)
                })
            }
        }
    }
}

const fn open_route(path: &'static str, handler: fn() -> MethodRouter<Arc<Shared>>) -> Route {
    let (dialect, job) = (openai::DIALECT, Job::Handle(handler));
    Route { method: Method::GET, path, access: Access::Open, dialect, job }
}

const fn keyed_route(
    method: Method,
    path: &'static str,
    handler: fn() -> MethodRouter<Arc<Shared>>,
) -> Route {
    let (dialect, job) = (openai::DIALECT, Job::Handle(handler));
    Route { method, path, access: Access::Keyed, dialect, job }
}

const fn ollama_route(
    method: Method,
    path: &'static str,
    handler: fn() -> MethodRouter<Arc<Shared>>,
) -> Route {
    let (dialect, job) = (ollama::DIALECT, Job::Handle(handler));
    Route { method, path, access: Access::Keyed, dialect, job }
}

const fn anthropic_route(
    method: Method,
    path: &'static str,
    handler: fn() -> MethodRouter<Arc<Shared>>,
) -> Route {
    let (dialect, job) = (anthropic::DIALECT, Job::Handle(handler));
    Route { method, path, access: Access::Keyed, dialect, job }
}

const fn llamacpp_route(
    method: Method,
    path: &'static str,
    handler: fn() -> MethodRouter<Arc<Shared>>,
) -> Route {
    let (dialect, job) = (llamacpp::DIALECT, Job::Handle(handler));
    Route { method, path, access: Access::Keyed, dialect, job }
}

const fn ask_route(path: &'static str, dialect: Dialect, read: Read) -> Route {
    Route { method: Method::POST, path, access: Access::Keyed, dialect, job: Job::Answer(read) }
}

/// Every route there is.
pub const ROUTES: &[Route] = &[
    open_route("/", || get(page::root)),
    open_route("/page/{build}/{file}", || get(page::file)),
    open_route("/health", || get(health::live)),
    open_route("/v1/health", || get(health::live)),
    open_route("/livez", || get(health::live)),
    open_route("/ping", || get(health::live)),
    open_route("/readyz", || get(health::ready)),
    keyed_route(Method::GET, "/version", || get(health::version)),
    Route {
        method: Method::GET,
        path: "/metrics",
        access: Access::Operator,
        dialect: openai::DIALECT,
        job: Job::Handle(|| get(health::metrics)),
    },
    Route {
        method: Method::GET,
        path: "/load",
        access: Access::Operator,
        dialect: openai::DIALECT,
        job: Job::Handle(|| get(fleet::load)),
    },
    keyed_route(Method::GET, "/server_info", || get(fleet::server_info)),
    keyed_route(Method::GET, "/get_server_info", || get(fleet::server_info)),
    keyed_route(Method::GET, "/model_info", || get(fleet::model_info)),
    keyed_route(Method::GET, "/get_model_info", || get(fleet::model_info)),
    keyed_route(Method::POST, "/drain", || post(fleet::drain)),
    keyed_route(Method::GET, "/v1/models", || get(anthropic::models::list)),
    keyed_route(Method::GET, "/v1/models/{*id}", || get(anthropic::models::one)),
    keyed_route(Method::GET, "/openapi.json", || get(openapi::page)),
    keyed_route(Method::GET, "/requests", || get(requests::list)),
    keyed_route(Method::GET, "/requests/{id}", || get(requests::one)),
    keyed_route(Method::POST, "/models/load", || post(models::load)),
    keyed_route(Method::POST, "/models/unload", || post(models::unload)),
    keyed_route(Method::POST, "/models/pin", || post(models::pin)),
    keyed_route(Method::GET, "/models/plan", || get(models::plan)),
    ask_route("/v1/chat/completions", openai::DIALECT, openai::chat::read),
    ask_route("/v1/completions", openai::DIALECT, openai::completion::read),
    ask_route("/v1/responses", openai::responses::DIALECT, openai::responses::read),
    ask_route("/v1/responses/compact", openai::responses::DIALECT, openai::responses::compact),
    ask_route("/v1/responses/input_tokens", openai::responses::DIALECT, openai::responses::count),
    keyed_route(Method::GET, "/v1/responses", || get(openai::responses::socket)),
    keyed_route(Method::GET, "/v1/responses/{id}", || get(openai::responses::one)),
    keyed_route(Method::DELETE, "/v1/responses/{id}", || delete(openai::responses::remove)),
    keyed_route(Method::POST, "/v1/responses/{id}/cancel", || post(openai::responses::cancel)),
    keyed_route(Method::GET, "/v1/responses/{id}/input_items", || {
        get(openai::responses::input_items)
    }),
    keyed_route(Method::POST, "/v1/conversations", || post(conversations::create)),
    keyed_route(Method::GET, "/v1/conversations/{id}", || get(conversations::one)),
    keyed_route(Method::POST, "/v1/conversations/{id}", || post(conversations::update)),
    keyed_route(Method::DELETE, "/v1/conversations/{id}", || delete(conversations::remove)),
    keyed_route(Method::GET, "/v1/conversations/{id}/items", || get(conversations::list_items)),
    keyed_route(Method::POST, "/v1/conversations/{id}/items", || post(conversations::add_items)),
    keyed_route(Method::GET, "/v1/conversations/{id}/items/{item}", || get(conversations::item)),
    keyed_route(Method::DELETE, "/v1/conversations/{id}/items/{item}", || {
        delete(conversations::remove_item)
    }),
    keyed_route(Method::POST, "/v1/files", || post(openai::files::upload)),
    keyed_route(Method::GET, "/v1/files", || get(openai::files::list)),
    keyed_route(Method::GET, "/v1/files/{id}", || get(openai::files::one)),
    keyed_route(Method::DELETE, "/v1/files/{id}", || delete(openai::files::remove)),
    keyed_route(Method::GET, "/v1/files/{id}/content", || get(openai::files::content)),
    keyed_route(Method::POST, "/v1/batches", || post(openai::batches::create)),
    keyed_route(Method::GET, "/v1/batches", || get(openai::batches::list)),
    keyed_route(Method::GET, "/v1/batches/{id}", || get(openai::batches::one)),
    keyed_route(Method::POST, "/v1/batches/{id}/cancel", || post(openai::batches::cancel)),
    ask_route("/v1/embeddings", openai::DIALECT, openai::embedding::read),
    ask_route("/v2/rerank", openai::DIALECT, openai::rerank::read_cohere),
    ask_route("/v1/rerank", openai::DIALECT, openai::rerank::read),
    keyed_route(Method::POST, "/v1/cache/leases", || post(openai::leases::make)),
    keyed_route(Method::GET, "/v1/cache/leases", || get(openai::leases::list)),
    keyed_route(Method::DELETE, "/v1/cache/leases", || delete(openai::leases::give_up)),
    Route {
        method: Method::POST,
        path: "/v1/messages",
        access: Access::Keyed,
        dialect: anthropic::DIALECT,
        job: Job::Handle(|| post(anthropic::messages::answer)),
    },
    anthropic_route(Method::POST, "/v1/messages/batches", || post(anthropic::batches::create)),
    anthropic_route(Method::GET, "/v1/messages/batches", || get(anthropic::batches::list)),
    anthropic_route(Method::GET, "/v1/messages/batches/{id}", || get(anthropic::batches::one)),
    anthropic_route(Method::DELETE, "/v1/messages/batches/{id}", || {
        delete(anthropic::batches::remove)
    }),
    anthropic_route(Method::POST, "/v1/messages/batches/{id}/cancel", || {
        post(anthropic::batches::cancel)
    }),
    anthropic_route(Method::GET, "/v1/messages/batches/{id}/results", || {
        get(anthropic::batches::results)
    }),
    ask_route("/v1/messages/count_tokens", anthropic::DIALECT, anthropic::messages::count),
    ask_route("/api/chat", ollama::DIALECT, ollama::chat::read),
    ask_route("/api/generate", ollama::DIALECT, ollama::generate::read),
    ask_route("/api/embed", ollama::DIALECT, ollama::embed::read),
    ask_route("/api/embeddings", ollama::DIALECT, ollama::embed::read_one),
    ask_route("/api/rerank", ollama::DIALECT, ollama::embed::rank),
    ollama_route(Method::GET, "/api/version", || get(ollama::models::version)),
    ollama_route(Method::GET, "/api/tags", || get(ollama::models::tags)),
    ollama_route(Method::GET, "/api/ps", || get(ollama::models::ps)),
    ollama_route(Method::POST, "/api/show", || post(ollama::models::show)),
    ollama_route(Method::POST, "/api/pull", || post(ollama::store::pull)),
    ollama_route(Method::POST, "/api/push", || post(ollama::store::push)),
    ollama_route(Method::POST, "/api/create", || post(ollama::store::create)),
    ollama_route(Method::POST, "/api/copy", || post(ollama::store::copy)),
    ollama_route(Method::DELETE, "/api/delete", || delete(ollama::store::delete)),
    ollama_route(Method::POST, "/api/blobs/{digest}", || post(ollama::store::blob)),
    ask_route("/completion", llamacpp::DIALECT, llamacpp::completion::read),
    ask_route("/completions", llamacpp::DIALECT, llamacpp::completion::read),
    ask_route("/infill", llamacpp::DIALECT, llamacpp::infill::read),
    ask_route("/chat/completions", openai::DIALECT, openai::chat::read),
    ask_route("/tokenize", llamacpp::DIALECT, llamacpp::tokens::tokenize),
    ask_route("/detokenize", llamacpp::DIALECT, llamacpp::tokens::detokenize),
    ask_route("/apply-template", llamacpp::DIALECT, llamacpp::tokens::apply_template),
    ask_route("/embedding", llamacpp::DIALECT, llamacpp::numbers::embed),
    ask_route("/embeddings", llamacpp::DIALECT, llamacpp::numbers::embed),
    ask_route("/rerank", llamacpp::DIALECT, llamacpp::numbers::rank),
    ask_route("/reranking", llamacpp::DIALECT, llamacpp::numbers::rank),
    ask_route("/v1/reranking", llamacpp::DIALECT, llamacpp::numbers::rank),
    llamacpp_route(Method::GET, "/models", || get(anthropic::models::list)),
    llamacpp_route(Method::GET, "/props", || get(llamacpp::state::props)),
    llamacpp_route(Method::POST, "/props", || post(llamacpp::state::set_props)),
    Route {
        method: Method::GET,
        path: "/slots",
        access: Access::Operator,
        dialect: llamacpp::DIALECT,
        job: Job::Handle(|| get(llamacpp::state::slots)),
    },
    llamacpp_route(Method::POST, "/slots/{id}", || post(llamacpp::state::act_on_slot)),
    llamacpp_route(Method::GET, "/lora-adapters", || get(llamacpp::state::adapters)),
    llamacpp_route(Method::POST, "/lora-adapters", || post(llamacpp::state::set_adapters)),
];

/// What the lines of batches may ask: a path, what reads it, and how errors are told there.
pub const LINES: &[(&str, Read, Dialect)] = &[
    ("/v1/chat/completions", openai::chat::read, openai::DIALECT),
    ("/v1/completions", openai::completion::read, openai::DIALECT),
    ("/v1/embeddings", openai::embedding::read, openai::DIALECT),
    ("/v1/responses", openai::responses::read, openai::responses::DIALECT),
    ("/v1/messages", anthropic::messages::read, anthropic::DIALECT),
];

/// That of a path.
pub fn lines_of(path: &str) -> Option<(Read, &'static Dialect)> {
    let row = LINES.iter().find(|(own, ..)| *own == path);
    row.map(|(_, read, dialect)| (*read, dialect))
}

/// Begin paths that two dialects have.
const SHARED: &str = "/v1/models";

/// Begin paths of Ollama's dialect.
const OLLAMA: &str = "/api/";

/// The dialect of a path: that of its route. Where there is none, or both have it, that of who asks:
/// OpenAI's unless the request says otherwise.
fn dialect_of(path: &str, speaks_anthropic: bool) -> &'static Dialect {
    const OPENAI: &Dialect = &openai::DIALECT;
    const ANTHROPIC: &Dialect = &anthropic::DIALECT;
    if path.starts_with(OLLAMA) {
        return &ollama::DIALECT;
    }
    let route = ROUTES.iter().find(|route| route.path == path);
    match route.filter(|route| !route.path.starts_with(SHARED)) {
        Some(route) => &route.dialect,
        None if speaks_anthropic => ANTHROPIC,
        None => OPENAI,
    }
}

/// Writes errors in the dialect of their route.
async fn speak(request: Request, next: Next) -> Response {
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let path = path.unwrap_or_else(|| request.uri().path().to_owned());
    let speaks_anthropic = anthropic::speaks(request.headers());
    let response = next.run(request).await;
    let dialect = dialect_of(&path, speaks_anthropic);
    write_body(response, dialect)
}

/// The router of one server.
pub fn router(shared: Arc<Shared>) -> Router {
    let of = |access: Access| {
        let rows = ROUTES.iter().filter(|route| route.access == access);
        rows.fold(Router::new(), |router, row| router.route(row.path, row.handler()))
            .method_not_allowed_fallback(wrong_method)
    };
    let keyed = of(Access::Keyed).fallback(unknown_path).layer(from_fn(access::key));
    let operator = of(Access::Operator).layer(from_fn(access::operator));
    of(Access::Open)
        .merge(keyed)
        .merge(operator)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(Arc::clone(&shared), access::site))
        .layer(from_fn(speak))
        .with_state(shared)
}

async fn unknown_path(request: Request) -> ApiError {
    let path = request.uri().path();
    // (Of an address that ends in /v1 the clients of Anthropic and Ollama make /v1/v1/messages.)
    let is_end = |route: &&Route| route.path.len() > 1 && path.ends_with(route.path);
    let meant = ROUTES.iter().filter(is_end).max_by_key(|route| route.path.len());
    let tip = meant.map(|route| format!("; there is {}: leave out what is before it", route.path));
    let message =
        format!("there is no {} {}{}", request.method(), shown(path), tip.unwrap_or_default());
    ApiError { code: Some("unknown_path"), ..ApiError::new(StatusCode::NOT_FOUND, message) }
}

async fn wrong_method(request: Request) -> ApiError {
    let message = format!("this path does not take {}", request.method());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message)
}

/// A bug in a handler costs its request only. The panic itself went to the log by the hook.
fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    ApiError::internal().into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::{Body, to_bytes};
    use tower::ServiceExt;

    #[tokio::test]
    async fn a_bug_in_a_handler_is_a_500_without_its_text() {
        async fn broken() -> Response {
            panic!("secret at /root/x.rs:7")
        }
        let router: Router =
            Router::new().route("/broken", get(broken)).layer(CatchPanicLayer::custom(panicked));
        let router = router.layer(from_fn(speak));
        let request = Request::builder().uri("/broken").body(Body::empty()).unwrap();
        let response = router.oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        let body = String::from_utf8(body.to_vec()).unwrap();
        assert!(body.contains("internal_error") && !body.contains("secret"), "{body}");
    }

    #[test]
    fn only_the_reviewed_routes_are_open() {
        let open = ROUTES.iter().filter(|route| route.access == Access::Open);
        let paths: Vec<&str> = open.map(|route| route.path).collect();
        let open =
            ["/", "/page/{build}/{file}", "/health", "/v1/health", "/livez", "/ping", "/readyz"];
        assert_eq!(paths, open);
        let operator = ROUTES.iter().filter(|route| route.access == Access::Operator);
        assert_eq!(
            operator.map(|route| route.path).collect::<Vec<_>>(),
            ["/metrics", "/load", "/slots"]
        );
    }
}
