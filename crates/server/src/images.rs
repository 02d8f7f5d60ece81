//! Images in requests: how dialects write them, and what of them a model sees.

use std::sync::Arc;

use axum::http::StatusCode;
use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
pub use tokenmill_chat::{Image, Source};
use tokenmill_media::{Ceilings, MediaError};

use crate::ask::Ask;
use crate::config::Limits;
use crate::error::ApiError;
use crate::fields::shown;
use crate::shared::{Model, Shared};

/// Base64 with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Media types that clients may name; which format it is, the bytes say.
const TYPES: &[&str] = &[
    "image/png",
    "image/jpeg",
    "image/jpg",
    "image/webp",
    "image/gif",
    "image/bmp",
    "image/x-ms-bmp",
];

/// An image by an address, or a data URL; `member` is the one that has it.
///
/// # Errors
/// 400 for any other kind of URL, and for data that are no image in base64.
pub fn of_url(path: String, url: &str, member: &str) -> Result<Image, ApiError> {
    let (scheme, rest) = url.split_once(':').unwrap_or_default();
    match scheme.to_ascii_lowercase().as_str() {
        "http" | "https" => Ok(Image { path, source: Source::Address(url.to_owned()) }),
        "data" => of_data(path, rest, member),
        other => {
            let scheme = shown(other);
            let message =
                format!("{member} is no data, http or https URL (its scheme is {scheme:?})");
            Err(ApiError::bad(member, message))
        }
    }
}

/// One by what stands behind `data:`.
fn of_data(path: String, rest: &str, member: &str) -> Result<Image, ApiError> {
    let (head, data) = rest.split_once(',').unwrap_or((rest, ""));
    let (media, is_base64) = match head.rsplit_once(';') {
        Some((media, coding)) => (media, coding.trim().eq_ignore_ascii_case("base64")),
        None => (head, false),
    };
    if !is_base64 {
        let message = format!("{member} is a data URL that is not in base64");
        return Err(ApiError::bad(member, message));
    }
    let media = media.split(';').next().unwrap_or_default();
    of_base64(path, data, (Some(media), member))
}

/// One by its file in base64, of a media type if that is told.
///
/// # Errors
/// 400 for what is no base64, or of a type that is not read.
pub fn of_base64(
    path: String,
    data: &str,
    (media, member): (Option<&str>, &str),
) -> Result<Image, ApiError> {
    let media = media.map(|media| media.trim().to_ascii_lowercase());
    if let Some(media) = media.filter(|media| !TYPES.contains(&media.as_str())) {
        let (media, known) = (shown(&media), TYPES.join(", "));
        let message = format!("{member} is of type {media:?}; images are of {known}");
        return Err(ApiError::bad(member, message));
    }
    let file = BASE64
        .decode(data)
        .map_err(|error| ApiError::bad(member, format!("{member} is not base64: {error}")))?;
    if file.is_empty() {
        return Err(ApiError::bad(member, format!("{member} has no bytes")));
    }
    Ok(Image { path, source: Source::File(file.into()) })
}

/// 400: the model reads text alone.
pub fn unseen(image: &Image, model: &str) -> ApiError {
    let path = &image.path;
    let message = format!("{path} is an image; the model {model:?} takes text");
    ApiError::unsupported(path, message)
}

/// An image's file.
///
/// # Errors
/// 400 where that is elsewhere still.
fn file(image: &Image) -> Result<&Arc<[u8]>, ApiError> {
    let path = &image.path;
    match &image.source {
        Source::File(file) => Ok(file),
        Source::Address(_) => {
            let message = format!(
                "{path} is an image elsewhere, and this server fetches none: send it as a data URL, or \
                 start the server with --fetch-images"
            );
            Err(ApiError::unsupported(path, message))
        }
    }
}

/// What is wrong with an image.
pub fn not_seen(error: &MediaError, path: &str) -> ApiError {
    let bad =
        ApiError { code: Some("invalid_image"), ..ApiError::bad(path, format!("{path}: {error}")) };
    match error {
        MediaError::Bytes { .. } => ApiError { status: StatusCode::PAYLOAD_TOO_LARGE, ..bad },
        MediaError::Config { .. } | MediaError::Unsupported { .. } => {
            ApiError { code: Some("unsupported"), ..bad }
        }
        _ => bad,
    }
}

/// The files of images, in order.
///
/// # Errors
/// 400 for more than a request may have, and for the first that is elsewhere.
pub fn files<'a>(images: &[&'a Image], limits: &Limits) -> Result<Vec<&'a Arc<[u8]>>, ApiError> {
    let (found, most) = (images.len(), limits.images);
    match images.first() {
        Some(first) if found > most => {
            let message = format!("the request has {found} images, the limit is {most}");
            Err(ApiError::bad(&first.path, message))
        }
        _ => images.iter().map(|image| file(image)).collect(),
    }
}

/// Whether images are to be fetched before a request can be prepared.
pub fn are_elsewhere(shared: &Shared, ask: &mut Ask) -> bool {
    shared.fetcher.is_some() && ask.images_mut().iter().any(|image| image.is_elsewhere())
}

/// A request with the files of its images, fetched where that is on, for a model that sees them.
///
/// # Errors
/// 400 naming the first that cannot be had.
pub async fn fetched(shared: &Shared, model: &Model, mut ask: Ask) -> Result<Ask, ApiError> {
    let (Some(fetcher), true) = (&shared.fetcher, model.sees()) else { return Ok(ask) };
    let limits = &shared.config.limits;
    let mut elsewhere = ask.images_mut();
    if elsewhere.len() > limits.images {
        return Ok(ask); // (which is refused by their number)
    }
    elsewhere.retain(|image| image.is_elsewhere());
    let wanted: Vec<(String, String)> = elsewhere
        .iter()
        .filter_map(|image| match &image.source {
            Source::Address(url) => Some((image.path.clone(), url.clone())),
            Source::File(_) => None,
        })
        .collect();
    let files = fetcher.files(&wanted, (limits.image_bytes, limits.body_bytes)).await?;
    for (image, file) in elsewhere.iter_mut().zip(files) {
        image.source = Source::File(file.into());
    }
    Ok(ask)
}

impl Limits {
    /// How large an image may be.
    pub fn images_ceilings(&self) -> Ceilings {
        Ceilings { bytes: self.image_bytes, pixels: self.image_pixels, ..Ceilings::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenmill_media::size;

    fn of(url: &str) -> Result<Image, ApiError> {
        of_url("m[0]".into(), url, "m[0].url")
    }

    #[test]
    fn urls_are_data_or_addresses() {
        for url in [
            "data:image/png;base64,aGVsbG8=",
            "DATA:image/PNG;base64,aGVsbG8",
            "data:image/jpeg;name=a.jpg;BASE64,aGVsbG8=",
        ] {
            let image = of(url).expect(url);
            assert_eq!(image.source, Source::File(b"hello"[..].into()), "{url}");
        }
        for url in ["http://a/b.png", "HTTPS://a/b.png"] {
            assert!(of(url).expect(url).is_elsewhere());
        }
        for url in [
            "",
            "a.png",
            "/etc/passwd",
            "file:///etc/passwd",
            "ftp://a/b",
            "gopher://a",
            "javascript:alert(1)",
            "data:",
            "data:,",
            "data:image/png,aGVsbG8=",
            "data:image/png;base64,",
            "data:image/png;base64,a%20b",
            "data:image/svg+xml;base64,aGVsbG8=",
            "data:text/html;base64,aGVsbG8=",
            "data:application/pdf;base64,aGVsbG8=",
            "data:;base64,aGVsbG8=",
        ] {
            let error = of(url).expect_err(url);
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("m[0].url")));
        }
    }

    #[test]
    fn what_is_no_image_is_told_by_its_place() {
        let limits = Limits { image_bytes: 100, ..Limits::default() };
        let refused = |file: &[u8]| {
            let error = size(file, &limits.images_ceilings()).expect_err("refused");
            not_seen(&error, "m[0]")
        };
        for (file, status) in [(&b"hello"[..], 400), (b"\x89PNG\r\n\x1a\n", 400), (&[7; 101], 413)]
        {
            let error = refused(file);
            assert_eq!(error.status.as_u16(), status, "{error:?}");
            assert_eq!((error.code, error.param.as_deref()), (Some("invalid_image"), Some("m[0]")));
        }
        let many = ["http://a/", "http://b/"].map(|url| of(url).expect(url));
        let one = Limits { images: 1, ..limits.clone() };
        let error = files(&[&many[0], &many[1]], &one).expect_err("two");
        assert!(error.message.contains("2 images, the limit is 1"), "{}", error.message);
        let elsewhere = of("http://127.0.0.1/").expect("an address");
        let error = file(&elsewhere).expect_err("it is not fetched");
        assert_eq!(error.code, Some("unsupported"));
        assert!(error.message.contains("--fetch-images"), "{}", error.message);
    }
}
