//! Pages in a browser: whose may ask, what they are told beforehand, and that they can read what they
//! get, errors too.

use serde_json::json;
use tokenmill_http_tests::{Reply, Setup, Site};

const CHAT: &str = "/v1/chat/completions";
const PAGE: &str = "http://localhost:5173";
const JSON: (&str, &str) = ("content-type", "application/json");

fn site(origins: &[&str], keys: &[&str]) -> Site {
    let mut setup = Setup::default();
    setup.server.allowed_origins = origins.iter().map(|o| o.to_string()).collect();
    setup.server.api_keys = keys.iter().map(|k| k.to_string()).collect();
    Site::with(setup)
}

fn preflight(site: &Site, origin: &str, more: &[(&str, &str)]) -> Reply {
    let asked = [("origin", origin), ("access-control-request-method", "POST")];
    let headers: Vec<_> = asked.iter().chain(more).copied().collect();
    site.client.open("OPTIONS", CHAT, &headers, b"").reply
}

#[test]
fn a_page_of_an_allowed_origin_asks_and_reads() {
    // Keys make no difference to the question whether one may ask: it carries none.
    for keys in [&[][..], &["secret"]] {
        let site = site(&["https://chat.example", PAGE], keys);
        let wanted = "authorization,content-type,x-stainless-os,x-stainless-retry-count";
        let reply = preflight(&site, PAGE, &[("access-control-request-headers", wanted)]);
        assert_eq!(reply.status, 204, "{reply:?}");
        assert_eq!(reply.header("access-control-allow-origin"), Some(PAGE));
        assert_eq!(reply.header("access-control-allow-headers"), Some(wanted));
        assert_eq!(reply.header("vary"), Some("origin"));
        assert_eq!(reply.header("access-control-allow-credentials"), None);
        let methods = reply.header("access-control-allow-methods").expect("methods").to_owned();
        for method in ["GET", "POST", "DELETE"] {
            assert!(methods.contains(method), "{methods}");
        }
        let bare = preflight(&site, PAGE, &[]);
        let headers = bare.header("access-control-allow-headers").expect("headers").to_owned();
        assert!(headers.contains("authorization") && headers.contains("content-type"));
        let private = preflight(&site, PAGE, &[("access-control-request-private-network", "true")]);
        assert_eq!(private.header("access-control-allow-private-network"), Some("true"));
        let bearer = keys.first().map(|key| format!("Bearer {key}"));
        let mut headers = vec![JSON, ("origin", PAGE)];
        headers.extend(bearer.as_deref().map(|b| ("authorization", b)));
        for stream in [false, true] {
            let messages = json!([{ "role": "user", "content": "hi" }]);
            let body = json!({ "messages": messages, "max_tokens": 2, "stream": stream });
            let reply = site.client.send("POST", CHAT, &headers, body.to_string().as_bytes());
            assert_eq!(reply.status, 200, "{reply:?}");
            assert_eq!(reply.header("access-control-allow-origin"), Some(PAGE), "{stream}");
            assert!(reply.header("access-control-expose-headers").is_some());
        }
    }
}

#[test]
fn a_page_can_read_why_it_was_refused() {
    let site = site(&[PAGE], &["secret"]);
    let key = ("authorization", "Bearer secret");
    type Headers<'a> = &'a [(&'a str, &'a str)];
    let cases: [(&str, &str, Headers<'_>, u16); 5] = [
        ("GET", "/v1/models", &[], 401),
        ("GET", "/v1/nothing", &[key], 404),
        ("GET", CHAT, &[key], 405),
        ("POST", CHAT, &[key], 415),
        ("POST", CHAT, &[key, JSON], 400),
    ];
    for (method, path, more, status) in cases {
        let headers: Vec<_> = [("origin", PAGE)].iter().chain(more).copied().collect();
        let reply = site.client.send(method, path, &headers, b"");
        assert_eq!(reply.status, status, "{method} {path}");
        assert_eq!(reply.header("access-control-allow-origin"), Some(PAGE), "{method} {path}");
    }
}

#[test]
fn pages_that_nobody_named_are_refused() {
    let open = site(&[], &[]);
    let named = site(&[PAGE, "app://obsidian.md", "moz-extension://*"], &[]);
    let any = site(&["*"], &["secret"]);
    let cases = [
        (&open, PAGE, false),
        (&open, "null", false),
        (&named, PAGE, true),
        (&named, "http://localhost:5174", false),
        (&named, "https://localhost:5173", false),
        (&named, "http://localhost:5173.evil.example", false),
        (&named, "app://obsidian.md", true),
        (&named, "app://other", false),
        (&named, "moz-extension://1b2c", true),
        (&named, "chrome-extension://1b2c", false),
        (&named, "null", false),
        (&any, "https://any.example", true),
        (&any, "null", true),
    ];
    for (site, origin, allowed) in cases {
        let asked = preflight(site, origin, &[]);
        let body = json!({ "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 1 });
        let headers = [JSON, ("origin", origin), ("x-api-key", "secret")];
        let reply = site.client.send("POST", CHAT, &headers, body.to_string().as_bytes());
        let statuses = (asked.status, reply.status);
        assert_eq!(statuses, if allowed { (204, 200) } else { (403, 403) }, "{origin}");
        for reply in [&asked, &reply] {
            let told = reply.header("access-control-allow-origin");
            assert_eq!(told, allowed.then_some(origin), "{origin}");
        }
        if !allowed {
            assert!(reply.error("message").contains("--allow-origin"), "{reply:?}");
        }
    }
}

#[test]
fn a_host_name_is_allowed_by_name() {
    let mut setup = Setup::default();
    setup.server.allowed_hosts = vec!["host.docker.internal".into()];
    let site = Site::with(setup);
    for (host, status) in [
        ("host.docker.internal:8080", 200),
        ("HOST.docker.internal", 200),
        ("docker.internal", 403),
        ("evil.example", 403),
    ] {
        let reply = site.client.send("GET", "/v1/models", &[("host", host)], b"");
        assert_eq!(reply.status, status, "{host}");
        if status == 403 {
            assert!(reply.error("message").contains("--allow-host"), "{reply:?}");
        }
    }
}
