//! Who may ask: every route of the table without a key, hosts, origins, paths made to confuse.

use serde_json::json;
use tokenmill_http_tests::{Setup, Site};
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
