//! Names of sites as the set-up and browsers spell them: origins of pages that may ask, and host
//! names that lead here. Pure.

/// Whether an allowed origin stands for pages that anybody can make: all of them, or those that a
/// browser shows without an origin.
pub fn is_wide(allowed: &str) -> bool {
    matches!(allowed, "*" | "null")
}

/// Whether a browser's origin is the allowed one. `*` is every origin; behind a scheme that no web
/// site has, such as that of extensions, `*` is every host.
pub fn allows(allowed: &str, origin: &str) -> bool {
    if allowed == "*" {
        return !origin.is_empty();
    }
    let (allowed, origin) = (normal(allowed), normal(origin));
    match allowed.strip_suffix("://*") {
        Some(scheme) => origin
            .split_once("://")
            .is_some_and(|(s, host)| s == scheme && !host.is_empty() && !is_web(s)),
        None => allowed == origin,
    }
}

/// Why an origin cannot be allowed as it is written, with what to write instead.
///
/// # Errors
/// The reason.
pub fn check_origin(text: &str) -> Result<(), String> {
    if is_wide(text) {
        return Ok(());
    }
    let Some((scheme, site)) = text.split_once("://") else {
        return Err(format!("an origin has a scheme: write http://{text} or https://{text}"));
    };
    let mut letters = scheme.chars();
    let good = letters.next().is_some_and(|c| c.is_ascii_alphabetic())
        && letters.all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    if !good {
        return Err(format!("{scheme:?} is no scheme; http://localhost:5173 is an origin"));
    }
    let host = site.split(['/', '?', '#']).next().unwrap_or_default();
    if host != site && !host.is_empty() {
        return Err(format!("an origin has no path: write {scheme}://{host}"));
    }
    if !host.is_ascii() {
        return Err("browsers send such a name in its ASCII form: write http://xn--…".into());
    }
    let wild = host.contains('*');
    if wild && (is_web(scheme) || host != "*") {
        return Err("* stands for every origin, or for every host behind a scheme of programs, \
                    such as app://*: name the site"
            .into());
    }
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c.is_control() || c == '@') {
        return Err(
            "http://localhost:5173 is an origin: a scheme, a host and perhaps a port".into()
        );
    }
    Ok(())
}

/// Why a host name cannot be allowed as it is written, with what to write instead.
///
/// # Errors
/// The reason.
pub fn check_host(text: &str) -> Result<(), String> {
    if text == "*" {
        return Ok(());
    }
    if let Some((_, site)) = text.split_once("://") {
        let host = name_of(site.split('/').next().unwrap_or_default());
        return Err(format!("a host name has no scheme: write {host}"));
    }
    let name = name_of(text);
    if name != text.trim_start_matches('[').trim_end_matches(']') {
        return Err(format!("a host name has no port, any is allowed: write {name}"));
    }
    let has_name = name.contains(|c: char| c.is_ascii_alphanumeric());
    let odd = |c: char| !(c.is_ascii_alphanumeric() || "-._:".contains(c));
    if !has_name || name.contains(odd) {
        return Err("host.docker.internal is a host name, as is 192.168.0.7".into());
    }
    Ok(())
}

/// The name in a `Host`, without its port and brackets.
pub fn name_of(host: &str) -> &str {
    match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(name, _)| name),
        // More than one colon: an address of IPv6 without brackets.
        None if host.matches(':').count() > 1 => host,
        None => host.split_once(':').map_or(host, |(name, _)| name),
    }
}

fn is_web(scheme: &str) -> bool {
    scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")
}

/// In small letters and without the port that the scheme implies, as browsers send it.
fn normal(origin: &str) -> String {
    let origin = origin.to_ascii_lowercase();
    let implied = [("http://", ":80"), ("https://", ":443")];
    let port = implied.iter().find(|(scheme, _)| origin.starts_with(scheme));
    let bare = port.and_then(|(_, port)| origin.strip_suffix(port)).map(str::to_owned);
    bare.unwrap_or(origin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_match_as_browsers_send_them() {
        let cases = [
            ("http://localhost:5173", "http://localhost:5173", true),
            ("HTTP://Localhost:5173", "http://localhost:5173", true),
            ("http://localhost:5173", "http://localhost:5174", false),
            ("http://localhost:5173", "https://localhost:5173", false),
            ("http://localhost", "http://localhost.evil.example", false),
            ("http://localhost:80", "http://localhost", true),
            ("https://chat.example:443", "https://chat.example", true),
            ("https://chat.example:80", "https://chat.example", false),
            ("app://obsidian.md", "app://obsidian.md", true),
            ("app://obsidian.md", "app://other.md", false),
            ("moz-extension://*", "moz-extension://3a5f", true),
            ("moz-extension://*", "moz-extension://", false),
            ("moz-extension://*", "https://evil.example", false),
            ("https://*", "https://evil.example", false),
            ("null", "null", true),
            ("*", "null", true),
            ("*", "https://any.example", true),
            ("*", "", false),
        ];
        for (allowed, origin, expect) in cases {
            assert_eq!(allows(allowed, origin), expect, "{allowed} {origin}");
        }
    }

    #[test]
    fn what_is_no_origin_says_what_to_write() {
        for good in [
            "*",
            "null",
            "http://localhost:5173",
            "http://127.0.0.1",
            "http://[::1]:3000",
            "app://obsidian.md",
            "chrome-extension://abcdef",
            "vscode-webview://*",
        ] {
            assert_eq!(check_origin(good), Ok(()), "{good}");
        }
        let cases = [
            ("localhost:5173", "write http://localhost:5173 or https://localhost:5173"),
            ("http://localhost:5173/", "write http://localhost:5173"),
            ("https://chat.example/app?x#y", "write https://chat.example"),
            ("https://*", "name the site"),
            ("https://*.example", "name the site"),
            ("app://*.md", "name the site"),
            ("http://", "is an origin"),
            ("http:// x", "is an origin"),
            ("1x://y", "is an origin"),
            ("", "an origin has a scheme"),
        ];
        for (text, word) in cases {
            let why = check_origin(text).expect_err(text);
            assert!(why.contains(word), "{text}: {why}");
        }
    }

    #[test]
    fn what_is_no_host_name_says_what_to_write() {
        for good in ["host.docker.internal", "box", "192.168.0.7", "fd00::7", "[fd00::7]", "*"] {
            assert_eq!(check_host(good), Ok(()), "{good}");
        }
        let cases = [
            ("http://box.lan:8080/v1", "write box.lan"),
            ("box.lan:8080", "write box.lan"),
            ("[fd00::7]:8080", "write fd00::7"),
            ("", "is a host name"),
            ("a b", "is a host name"),
            ("*.lan", "is a host name"),
        ];
        for (text, word) in cases {
            let why = check_host(text).expect_err(text);
            assert!(why.contains(word), "{text}: {why}");
        }
    }
}
