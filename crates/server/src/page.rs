//! The page of a server, for people in a browser: its files are in the binary, and hold no data.
//! What they show they ask for as any client does, with a key where keys are set.

use axum::extract::Path;
use axum::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HeaderName, HeaderValue,
    IF_NONE_MATCH, REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;
use crate::fields::shown;

/// What the files were built from: SHA-256 of the sources, 16 hexadecimal digits. It is in the addresses of
/// all files but the first, so that a browser may keep them.
const BUILD: &str = include_str!("../page/build.txt");

/// A file of the page.
struct File {
    name: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
}

macro_rules! file {
    ($name:literal, $kind:literal) => {
        File { name: $name, kind: $kind, bytes: include_bytes!(concat!("../page/", $name)) }
    };
}

const INDEX: File = file!("index.html", "text/html; charset=utf-8");

/// What the first file asks for.
const FILES: &[File] = &[
    file!("app.css", "text/css; charset=utf-8"),
    file!("app.js", "text/javascript; charset=utf-8"),
    file!("code.js", "text/javascript; charset=utf-8"),
    file!("formula.js", "text/javascript; charset=utf-8"),
    file!("icon.svg", "image/svg+xml"),
    file!("licences.txt", "text/plain; charset=utf-8"),
];

/// Nothing from elsewhere, no script or style in a document's text, no text made into a document, in no frame of
/// another page.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     img-src 'self' data: blob:; font-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
);

/// What some clients ask before anything else, whether something is there; browsers get the page.
pub async fn root(headers: HeaderMap) -> Response {
    let mut response = match wants_page(&headers) {
        true => told(&INDEX, HeaderValue::from_static("no-cache"), &headers),
        false => "tokenmill is running\n".into_response(),
    };
    response.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
    response
}

/// A file of the page that this server has: of another build there is none.
pub async fn file(Path((build, name)): Path<(String, String)>, headers: HeaderMap) -> Response {
    let found = FILES.iter().find(|file| file.name == name);
    let Some(file) = found.filter(|_| build == BUILD.trim_end()) else {
        let message = format!("the page has no file {}/{}", shown(&build), shown(&name));
        let code = Some("unknown_path");
        return ApiError { code, ..ApiError::new(StatusCode::NOT_FOUND, message) }.into_response();
    };
    let kept = HeaderValue::from_static("public, max-age=31536000, immutable");
    told(file, kept, &headers)
}

/// Whether HTML is named among what is accepted, as browsers do and programs do not.
fn wants_page(headers: &HeaderMap) -> bool {
    let texts = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    texts.flat_map(|text| text.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let is_html = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case("text/html"));
        is_html && !parts.any(|weight| matches!(weight, "q=0" | "q=0.0"))
    })
}

fn told(file: &File, kept: HeaderValue, asked: &HeaderMap) -> Response {
    let tag = format!("\"{}\"", BUILD.trim_end());
    let has = |value: &HeaderValue| value.to_str().is_ok_and(|text| text.contains(&tag));
    let mut response = match asked.get_all(IF_NONE_MATCH).iter().any(has) {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => file.bytes.into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(file.kind));
    headers.insert(CACHE_CONTROL, kept);
    // (The digits of a digest are always a header's value.)
    headers.extend(HeaderValue::try_from(tag).ok().map(|tag| (ETAG, tag)));
    headers.insert(CONTENT_SECURITY_POLICY, POLICY);
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    for name in ["cross-origin-opener-policy", "cross-origin-resource-policy"] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static("same-origin"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browsers_get_the_page_and_programs_do_not() {
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        for (accept, page) in [
            (browser, true),
            ("Text/HTML; q=0.5", true),
            ("*/*", false),
            ("application/json, text/html;q=0", false),
            ("", false),
        ] {
            let headers = [(ACCEPT, HeaderValue::from_static(accept))].into_iter().collect();
            assert_eq!(wants_page(&headers), page, "{accept}");
        }
        assert!(!wants_page(&HeaderMap::new()));
    }
}
