//! Bodies that come compressed.

use std::io::{Cursor, Read};

use axum::http::header::CONTENT_ENCODING;
use axum::http::{HeaderMap, StatusCode};
use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

use crate::error::ApiError;

/// How a body is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coding {
    /// RFC 1952.
    Gzip,
    /// RFC 8878.
    Zstd,
}

impl Coding {
    /// What the headers say; `None`: not at all.
    ///
    /// # Errors
    /// 415 for one that is not known, and for several.
    pub fn of(headers: &HeaderMap) -> Result<Option<Self>, ApiError> {
        let mut found = headers.get_all(CONTENT_ENCODING).iter();
        let Some(value) = found.next() else { return Ok(None) };
        let value = value.to_str().unwrap_or_default().trim().to_ascii_lowercase();
        match (value.as_str(), found.next()) {
            ("" | "identity", None) => Ok(None),
            ("gzip" | "x-gzip", None) => Ok(Some(Self::Gzip)),
            ("zstd", None) => Ok(Some(Self::Zstd)),
            _ => {
                let message = "the content-encoding must be one of zstd, gzip and identity";
                Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
            }
        }
    }
}

/// A body that is being decompressed.
pub struct Decoding {
    source: Source,
    /// What came of it so far.
    pub bytes: Vec<u8>,
}

enum Source {
    Gzip(Box<MultiGzDecoder<Cursor<Vec<u8>>>>),
    Zstd(Box<StreamingDecoder<Cursor<Vec<u8>>, FrameDecoder>>),
}

impl Decoding {
    /// Of a body of which at most `limit` bytes are to come.
    ///
    /// # Errors
    /// 400 for one that does not begin so, or needs more than `limit` bytes to be read.
    pub fn new(coding: Coding, body: Vec<u8>, limit: usize) -> Result<Self, ApiError> {
        let body = Cursor::new(body);
        let source = match coding {
            Coding::Gzip => Source::Gzip(Box::new(MultiGzDecoder::new(body))),
            Coding::Zstd => {
                let window = limit.max(1 << 20) as u64;
                let reader = StreamingDecoder::new_with_max_window_size(body, window);
                Source::Zstd(Box::new(reader.map_err(|e| broken(coding, &e))?))
            }
        };
        Ok(Self { source, bytes: Vec::new() })
    }

    /// Goes on until there are more than `most` bytes; whether it came to its end before.
    ///
    /// # Errors
    /// 400 where the body is not what it says it is.
    pub fn go_on(&mut self, most: usize) -> Result<bool, ApiError> {
        let wanted = most.saturating_add(1).saturating_sub(self.bytes.len()) as u64;
        let (coding, read) = match &mut self.source {
            Source::Gzip(source) => {
                (Coding::Gzip, source.take(wanted).read_to_end(&mut self.bytes))
            }
            Source::Zstd(source) => {
                (Coding::Zstd, source.take(wanted).read_to_end(&mut self.bytes))
            }
        };
        read.map_err(|e| broken(coding, &e))?;
        if self.bytes.len() > most {
            return Ok(false);
        }
        match &self.source {
            Source::Zstd(source) if !at_end(source.get_ref()) => {
                Err(broken(coding, &"something follows the frame"))
            }
            _ => Ok(true),
        }
    }
}

fn at_end(source: &Cursor<Vec<u8>>) -> bool {
    source.position() >= source.get_ref().len() as u64
}

fn broken(coding: Coding, reason: &dyn std::fmt::Display) -> ApiError {
    let name = match coding {
        Coding::Gzip => "gzip",
        Coding::Zstd => "zstd",
    };
    let message = format!("the body is not {name}, as its content-encoding says: {reason}");
    ApiError::bad("body", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use std::io::Write;

    fn packed(coding: Coding, text: &[u8]) -> Vec<u8> {
        match coding {
            Coding::Gzip => {
                let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
                encoder.write_all(text).and_then(|()| encoder.finish()).expect("packed")
            }
            Coding::Zstd => compress_to_vec(text, CompressionLevel::Fastest),
        }
    }

    #[test]
    fn headers_say_how() {
        for (value, found) in [
            ("zstd", Ok(Some(Coding::Zstd))),
            (" GZIP ", Ok(Some(Coding::Gzip))),
            ("identity", Ok(None)),
            ("br", Err(415)),
            ("gzip, zstd", Err(415)),
        ] {
            let headers = HeaderMap::from_iter([(CONTENT_ENCODING, value.parse().unwrap())]);
            let told = Coding::of(&headers).map_err(|error| error.status.as_u16());
            assert_eq!(told, found, "{value}");
        }
        assert_eq!(Coding::of(&HeaderMap::new()), Ok(None));
    }

    #[test]
    fn what_was_packed_comes_out_in_parts_and_no_further_than_asked() {
        let text = b"{\"a\": 1} ".repeat(40_000);
        for coding in [Coding::Gzip, Coding::Zstd] {
            let body = packed(coding, &text);
            let mut decoding = Decoding::new(coding, body.clone(), 1 << 20).expect("begins");
            assert_eq!(decoding.go_on(1000), Ok(false), "{coding:?}");
            assert_eq!(decoding.bytes.len(), 1001);
            assert_eq!(decoding.go_on(text.len()), Ok(true));
            assert_eq!(decoding.bytes, text);
            let cut = body[..body.len() / 2].to_vec();
            let cut = Decoding::new(coding, cut, 1 << 20).and_then(|mut d| d.go_on(1 << 20));
            assert!(cut.is_err(), "{coding:?}");
            let more = [body, b"x".to_vec()].concat();
            let more = Decoding::new(coding, more, 1 << 20).and_then(|mut d| d.go_on(1 << 20));
            assert!(more.is_err(), "{coding:?}");
            let other = Decoding::new(coding, b"{}".to_vec(), 100).and_then(|mut d| d.go_on(100));
            assert_eq!(other.map_err(|e| e.status.as_u16()), Err(400), "{coding:?}");
        }
    }

    #[test]
    fn a_window_beyond_the_limit_is_refused_before_memory_is_taken() {
        // Magic, a descriptor without size, a window of 2^(10 + 30) bytes, an empty last block.
        let bomb = [0x28, 0xb5, 0x2f, 0xfd, 0, 30 << 3, 1, 0, 0].to_vec();
        assert!(Decoding::new(Coding::Zstd, bomb, 32 << 20).is_err());
    }
}
