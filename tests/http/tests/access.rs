//! Who may ask: every route of the table without a key, hosts, origins, paths made to confuse.

use std::collections::BTreeSet;

use serde_json::json;
use tokenmill_http_tests::{Reply, Setup, Site};
use tokenmill_server::{Access, ROUTES, ServeError, ServedModel, ServerConfig, spawn};

const KEY: &str = "canary-4f1d7c";

fn locked() -> Site {
    let mut setup = Setup::default();
    setup.server.api_keys = vec!["another".into(), KEY.into()];
    Site::with(setup)
}

#[test]
fn every_route_but_the_reviewed_ones_needs_a_key() {
    let site = locked();
    let bearer = format!("Bearer {KEY}");
    let json = ("content-type", "application/json");
    for route in ROUTES {
        let path = route.path.replace("{*id}", "sim");
        let method = route.method.as_str();
        let send = |headers: &[(&str, &str)]| {
            let headers: Vec<_> = headers.iter().copied().chain([json]).collect();
            site.client.send(method, &path, &headers, b"{}")
        };
        let open = route.access == Access::Open;
        for headers in [
            &[][..],
            &[("authorization", "Bearer wrong")],
            &[("authorization", "Bearer")],
            &[("authorization", KEY)],
            &[("x-api-key", "")],
            &[("cookie", KEY), ("x-forwarded-for", "127.0.0.1")],
        ] {
            let reply = send(headers);
            assert_eq!(reply.status == 401, !open, "{method} {path} {headers:?}: {reply:?}");
            if !open {
                assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
                // (Errors of Ollama's routes are texts.)
                match path.starts_with("/api/") {
                    true => assert!(reply.json()["error"].is_string(), "{reply:?}"),
                    false => assert_eq!(reply.error("type"), "authentication_error"),
                }
            }
        }
        for headers in [[("authorization", bearer.as_str())], [("x-api-key", KEY)]] {
            let reply = send(&headers);
            assert_ne!(reply.status, 401, "{method} {path}");
            assert!(!reply.body.contains(KEY), "{method} {path} tells the key");
        }
    }
}

#[test]
fn other_methods_and_odd_paths_do_not_get_around_the_key() {
    let site = locked();
    let paths = [
        "/nothing",
        "//v1/models",
        "/v1//models",
        "/v1/models/",
        "/v1/models?key=1",
        "/v1/%6dodels",
        "/health/../v1/models",
        "/health/%2e%2e/v1/models",
        "/health;/v1/models",
        "/health%2f..%2fv1/models",
        "/v1/models%00",
        "/V1/MODELS",
        "/metrics/",
    ];
    for path in paths {
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "BREW"] {
            let reply = site.client.open(method, path, &[("x-original-url", "/health")], b"").reply;
            assert_eq!(reply.status, 401, "{method} {path}");
        }
    }
    for route in ROUTES.iter().filter(|r| r.access == Access::Keyed) {
        let path = route.path.replace("{*id}", "sim");
        for method in ["OPTIONS", "HEAD", "DELETE", "TRACE"] {
            let status = site.client.open(method, &path, &[], b"").reply.status;
            assert_eq!(status, 401, "{method} {path}");
        }
    }
    let absolute = "GET http://localhost/v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n";
    assert_eq!(site.client.raw(absolute.as_bytes()).reply.status, 401);
}

#[test]
fn pages_of_other_sites_and_rebound_names_are_turned_away() {
    let mut setup = Setup::default();
    setup.server.allowed_origins = vec!["https://chat.example".into()];
    let site = Site::with(setup);
    let own = format!("http://{}", site.client.address());
    let cases = [
        ("host", "evil.example", 403),
        ("host", "evil.example:8080", 403),
        ("host", "127.0.0.1.evil.example", 403),
        ("host", "", 403),
        ("host", "localhost:1", 200),
        ("host", "[::1]:1", 200),
        ("origin", "https://evil.example", 403),
        ("origin", "null", 403),
        ("origin", "https://chat.example", 200),
        ("origin", own.as_str(), 200),
    ];
    for (name, value, status) in cases {
        for path in ["/health", "/v1/models"] {
            let reply = site.client.send("GET", path, &[(name, value)], b"");
            assert_eq!(reply.status, status, "{name}: {value} {path}");
        }
    }
    let preflight = |origin: &str| {
        let headers = [("origin", origin), ("access-control-request-method", "POST")];
        let reply = site.client.open("OPTIONS", "/v1/completions", &headers, b"").reply;
        assert_eq!(reply.header("access-control-allow-credentials"), None);
        reply.header("access-control-allow-origin").map(str::to_owned)
    };
    assert_eq!(preflight("https://chat.example").as_deref(), Some("https://chat.example"));
    assert_eq!(preflight("https://evil.example"), None);
}

#[test]
fn keys_are_not_needed_where_none_are_set() {
    let site = Site::new();
    let headers = [("authorization", "Bearer anything")];
    assert_eq!(site.client.send("GET", "/v1/models", &headers, b"").status, 200);
    let body = json!({ "prompt": "a", "max_tokens": 1 });
    assert_eq!(site.client.post("/v1/completions", &body).status, 200);
}

#[test]
fn a_public_bind_without_a_key_does_not_start() {
    let config = ServerConfig::new(([0, 0, 0, 0], 0).into());
    assert!(matches!(
        spawn(config, Vec::<ServedModel>::new()),
        Err(ServeError::PublicWithoutKey { .. })
    ));
    let config = ServerConfig::new(([127, 0, 0, 1], 0).into());
    assert!(matches!(spawn(config, Vec::<ServedModel>::new()), Err(ServeError::NoModel)));
    let site = Site::new();
    let mut setup = Setup::default();
    setup.server.bind = site.client.address();
    let taken = std::panic::catch_unwind(|| Site::with(setup));
    assert!(taken.is_err(), "a port is served once");
}

/// What everybody may ask, also where keys are set: whatever is added here is reviewed.
const OPEN: [&str; 7] =
    ["/", "/page/{build}/{file}", "/health", "/v1/health", "/livez", "/ping", "/readyz"];
const METHODS: [&str; 9] =
    ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"];

/// What changes the models that are there for everybody: for the first key, and those that may read the
/// metrics.
const CHANGES: [(&str, &str); 7] = [
    ("POST", "/models/pin"),
    ("POST", "/models/unload"),
    ("POST", "/drain"),
    ("POST", "/api/pull"),
    ("POST", "/api/create"),
    ("POST", "/api/copy"),
    ("DELETE", "/api/delete"),
];

/// Take no file, or none in JSON, and so read none.
const UNREAD: [&str; 2] = ["/api/blobs/{digest}", "/v1/files"];

/// The paths of the table, each once.
fn paths() -> BTreeSet<&'static str> {
    ROUTES.iter().map(|route| route.path).collect()
}

fn asked(path: &str) -> String {
    path.replace("{*id}", "sim")
        .replace("{id}", "sim")
        .replace("{item}", "i")
        .replace("{digest}", "sha256:0")
}

/// Whether an error has the form of its route's dialect.
fn is_in_form(path: &str, reply: &Reply) -> bool {
    let body = reply.json();
    let message = match path {
        _ if path.starts_with("/v1/messages") => (body["type"] == "error"
            && body["error"]["type"].is_string())
        .then(|| body["error"]["message"].clone()),
        _ if path.starts_with("/api/") => Some(body["error"].clone()),
        _ => ["type", "code", "param"]
            .iter()
            .all(|member| body["error"].get(member).is_some())
            .then(|| body["error"]["message"].clone()),
    };
    message.is_some_and(|message| message.as_str().is_some_and(|text| !text.is_empty()))
}

/// The status a request is refused with before its route is asked; none where it is asked.
fn refusal(path: &str, method: &str, key: Option<&str>, headers: &[(&str, &str)]) -> Option<u16> {
    let takes = |m: &str| ROUTES.iter().any(|r| r.path == path && r.method.as_str() == m);
    let is_taken = takes(method) || (method == "HEAD" && takes("GET"));
    let is_right = key == Some(KEY);
    let open = OPEN.contains(&path);
    // (A route that is there for those who ask to go on with WebSocket, and for nobody else.)
    let is_socket = path == "/v1/responses" && ["GET", "HEAD"].contains(&method);
    match () {
        () if !headers.is_empty() => Some(403),
        () if !open && key != Some("another") && !is_right => Some(401),
        // (For the first key only.)
        () if ["/metrics", "/slots", "/load"].contains(&path) && is_right => Some(403),
        () if CHANGES.contains(&(method, path)) && is_right => Some(403),
        () if is_socket => Some(405),
        () if !is_taken => Some(405),
        () => None,
    }
}

#[test]
fn every_route_and_method_is_refused_in_its_dialect_but_to_who_may() {
    let site = locked();
    let foreign: [&[(&str, &str)]; 3] =
        [&[], &[("host", "evil.example")], &[("origin", "https://evil.example")]];
    for path in paths() {
        for method in METHODS {
            for key in [None, Some("wrong"), Some(KEY), Some("another")] {
                for special in foreign {
                    let bearer = format!("Bearer {}", key.unwrap_or_default());
                    let mut headers = special.to_vec();
                    headers.extend(key.map(|_| ("authorization", bearer.as_str())));
                    headers.push(("content-type", "application/json"));
                    let what = format!("{method} {path} {key:?} {special:?}");
                    let stream = site.client.open(method, &asked(path), &headers, b"{}");
                    let expect = refusal(path, method, key, special);
                    match expect {
                        Some(status) => assert_eq!(stream.reply.status, status, "{what}"),
                        None => assert!(![401, 403, 405].contains(&stream.reply.status), "{what}"),
                    }
                    if method == "HEAD" {
                        continue;
                    }
                    let reply = stream.finish();
                    assert!(expect.is_none() || is_in_form(path, &reply), "{what}: {reply:?}");
                    assert!(!reply.body.contains(KEY), "{what}: {reply:?}");
                    assert_eq!(reply.status == 401, reply.header("www-authenticate").is_some());
                }
            }
        }
    }
}

#[test]
fn a_body_at_the_limit_is_read_and_one_byte_more_is_not() {
    const LIMIT: usize = 4096;
    let mut setup = Setup::default();
    setup.server.api_keys = vec![KEY.into()];
    setup.server.limits.body_bytes = LIMIT;
    let site = Site::with(setup);
    let body = |bytes: usize| format!("{{{}}}", " ".repeat(bytes - 2));
    let chunked = |bytes: usize| format!("{bytes:x}\r\n{}\r\n0\r\n\r\n", body(bytes));
    for route in ROUTES.iter().filter(|route| route.method == "POST") {
        let path = asked(route.path);
        for (bytes, is_long) in [(LIMIT, false), (LIMIT + 1, !UNREAD.contains(&route.path))] {
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {KEY}\r\n\
                 content-type: application/json\r\nconnection: close\r\n"
            );
            let whole = format!("{head}content-length: {bytes}\r\n\r\n{}", body(bytes));
            let parts = format!("{head}transfer-encoding: chunked\r\n\r\n{}", chunked(bytes));
            for request in [whole, parts] {
                let reply = site.client.raw(request.as_bytes()).finish();
                assert_eq!(reply.status == 413, is_long, "{path} {bytes}: {reply:?}");
                assert!(!is_long || is_in_form(route.path, &reply), "{path}: {reply:?}");
            }
            // Who has no key is told so, however long his body is.
            let keyless = format!(
                "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
                 content-type: application/json\r\ncontent-length: {bytes}\r\n\r\n"
            );
            assert_eq!(site.client.raw(keyless.as_bytes()).reply.status, 401, "{path}");
        }
    }
}

#[test]
fn paths_that_two_dialects_have_answer_in_that_of_who_asks() {
    let site = locked();
    for path in ["/v1/models", "/v1/models/sim", "/nothing"] {
        let reply = site.client.send("GET", path, &[("anthropic-version", "2023-06-01")], b"");
        assert_eq!((reply.status, &reply.json()["type"]), (401, &json!("error")), "{reply:?}");
        let reply = site.client.get(path);
        assert_eq!((reply.status, reply.error("code").as_str()), (401, "invalid_api_key"));
    }
}

#[test]
fn a_wrong_key_is_told_from_none() {
    let site = locked();
    for (headers, expect) in [
        (&[][..], "an API key is needed"),
        (&[("authorization", "Basic right")], "an API key is needed"),
        (&[("authorization", "Bearer wrong")], "this API key is not known here"),
        (&[("x-api-key", "wrong")], "this API key is not known here"),
    ] {
        let message = site.client.send("GET", "/v1/models", headers, b"").error("message");
        assert!(message.starts_with(expect), "{headers:?}: {message}");
    }
}
