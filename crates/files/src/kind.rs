//! What a file is, from its first bytes: downloads that went wrong, and models of other kinds, are
//! told by what they are.

use crate::error::LoadError;
use crate::mmap::MappedFile;

/// What a file is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Gguf,
    Safetensors,
    /// Not read here: what it is, and what to do.
    Other(String),
}

/// First bytes, what they mean, and what to do.
const HEADS: &[(&[u8], &str)] = &[
    (b"lmgg", "a GGML file from before GGUF; convert the model again"),
    (b"fmgg", "a GGML file from before GGUF; convert the model again"),
    (b"tjgg", "a GGML file from before GGUF; convert the model again"),
    (b"algg", "a GGML file from before GGUF; convert the model again"),
    (b"\x89HDF", "a Keras or HDF5 file; take the safetensors or GGUF file of the model"),
    (b"\x93NUMPY", "a NumPy array; take the safetensors or GGUF file of the model"),
    (b"%PDF", "a PDF document"),
    (b"\x89PNG", "an image (PNG)"),
    (b"\xff\xd8\xff", "an image (JPEG)"),
    (b"GIF8", "an image (GIF)"),
    (b"RIFF", "an image or sound (RIFF)"),
    (b"\x1f\x8b", "a gzip archive; unpack it"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive; unpack it"),
    (b"\xfd7zXZ", "an xz archive; unpack it"),
    (b"BZh", "a bzip2 archive; unpack it"),
    (b"7z\xbc\xaf", "a 7z archive; unpack it"),
    (b"Rar!", "a RAR archive; unpack it"),
    (b"\x7fELF", "a program"),
    (b"MZ", "a program"),
];
const PICKLE: &str = "a PyTorch pickle, which can run code when loaded; take the model's \
                      safetensors or convert it (save_pretrained of transformers)";
const ONNX: &str = "an ONNX model; take the safetensors or GGUF file of the model";
/// Bytes looked at.
const HEAD_BYTES: usize = 512;

/// What `file` is.
pub(crate) fn kind(file: &MappedFile) -> Kind {
    let name = file.path().file_name().and_then(|n| n.to_str()).unwrap_or_default();
    of_bytes(name, file.bytes())
}

/// What a file of this name and these bytes is.
pub(crate) fn of_bytes(name: &str, bytes: &[u8]) -> Kind {
    let head = &bytes[..bytes.len().min(HEAD_BYTES)];
    if head.starts_with(b"GGUF") {
        return Kind::Gguf;
    }
    let contains = |part: &[u8]| head.windows(part.len()).any(|w| w == part);
    if head.starts_with(b"PK\x03\x04") {
        let pickle = contains(b"data.pkl") || name.ends_with(".bin") || name.ends_with(".pth");
        let pickle = pickle || name.ends_with(".pt");
        return Kind::Other(if pickle { PICKLE } else { "a ZIP archive; unpack it" }.to_owned());
    }
    if let [0x80, 2..=5, ..] = head {
        return Kind::Other(PICKLE.to_owned());
    }
    if let Some((_, what)) = HEADS.iter().find(|(start, _)| head.starts_with(start)) {
        return Kind::Other((*what).to_owned());
    }
    if let Some(what) = text(name, head, bytes.len()) {
        return Kind::Other(what);
    }
    if head.get(257..262) == Some(b"ustar") {
        return Kind::Other("a tar archive; unpack it".to_owned());
    }
    if head.get(8) == Some(&b'{') {
        return Kind::Safetensors; // eight bytes of length, then the header
    }
    if name.ends_with(".onnx") || matches!(head, [8, 3..=12, 0x12 | 0x1a, ..]) {
        return Kind::Other(ONNX.to_owned());
    }
    let what = match head {
        _ if !head.is_empty() && head.iter().all(|&b| b == 0) => {
            "it begins with zeros, as unfinished downloads do; download it again".to_owned()
        }
        [_, _, _, _, _, _, _, _, ..] => {
            format!("it starts with {:02x?}", &head[..4])
        }
        _ => format!("it has {} bytes; download it again", bytes.len()),
    };
    Kind::Other(format!("neither GGUF nor safetensors: {what}"))
}

/// What stands in place of a JSON file, where it is none.
pub(crate) fn in_place_of_json(bytes: &[u8]) -> Option<String> {
    if bytes.is_empty() {
        return Some("an empty file; download it again".to_owned());
    }
    let what = text("", &bytes[..bytes.len().min(HEAD_BYTES)], bytes.len())?;
    let is_json = bytes.trim_ascii_start().first().is_some_and(|b| b"{[".contains(b));
    (!is_json).then(|| what.trim_start_matches("neither GGUF nor safetensors: ").to_owned())
}

/// Texts in place of a model.
fn text(name: &str, head: &[u8], len: usize) -> Option<String> {
    if head.is_empty() {
        let what = "neither GGUF nor safetensors: it is empty (0 bytes); download it again";
        return Some(what.to_owned());
    }
    if head.starts_with(b"version https://git-lfs") {
        let text = String::from_utf8_lossy(head);
        let size = text.lines().find_map(|l| l.strip_prefix("size ")?.trim().parse::<u64>().ok());
        let size = size.map_or(String::new(), |n| format!(" of {n} bytes"));
        return Some(format!(
            "a Git LFS pointer of {len} bytes in place of the file{size}; run git lfs pull"
        ));
    }
    // A character may be cut at the end of the head.
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(e) if e.error_len().is_none() && e.valid_up_to() > 0 => {
            std::str::from_utf8(&head[..e.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return None,
    };
    let is_control = |c: char| c.is_control() && !c.is_ascii_whitespace();
    if text.is_empty() || text.chars().any(is_control) {
        return None;
    }
    let begins = text.trim_start_matches('\u{feff}').trim_start().to_ascii_lowercase();
    let again = "often a log-in or error page saved in place of the file; download it again";
    Some(match begins.as_bytes() {
        _ if begins.starts_with("<!doctype html") || begins.starts_with("<html") => {
            format!("a web page (HTML), {again}")
        }
        [b'<', ..] => format!("a page of XML or HTML, {again}"),
        [b'{' | b'[', ..] if name.ends_with(".json") => {
            "a JSON file beside the weights; give the folder that it is in".to_owned()
        }
        [b'{' | b'[', ..] => {
            "a JSON text, often an error saved in place of the file; download it again".to_owned()
        }
        _ => {
            let line: String = text.lines().next().unwrap_or_default().chars().take(40).collect();
            format!("neither GGUF nor safetensors: a text that begins {line:?}")
        }
    })
}

/// Refuses a file that is no safetensors.
pub(crate) fn expect_safetensors(file: &MappedFile) -> Result<(), LoadError> {
    match kind(file) {
        Kind::Safetensors => Ok(()),
        Kind::Gguf => Err(LoadError::not_a_model(
            file.path(),
            "a GGUF file where safetensors are expected; name it with .gguf",
        )),
        Kind::Other(what) => Err(LoadError::not_a_model(file.path(), what)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_by_their_first_bytes() {
        let mut tar = vec![0; 512];
        tar[257..262].copy_from_slice(b"ustar");
        tar[0] = b'm';
        for (name, bytes, expect) in [
            ("m.gguf", &b""[..], "it is empty (0 bytes); download it again"),
            ("m.gguf", b"<!DOCTYPE html>\n<html><head>", "a web page (HTML)"),
            ("m.gguf", b"\n\n  <HTML lang=\"en\">", "a web page (HTML)"),
            ("m.gguf", b"<?xml version=\"1.0\"?><Error><Code>AccessDenied", "XML or HTML"),
            ("m.gguf", b"{\"error\": \"Repository not found\"}", "often an error saved"),
            ("config.json", b"{\"model_type\": \"llama\"}", "give the folder"),
            (
                "m.safetensors",
                b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4321\n",
                "a Git LFS pointer of 66 bytes in place of the file of 4321 bytes; run git lfs pull",
            ),
            ("m.gguf", b"%PDF-1.7\n", "a PDF document"),
            ("m.gguf", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "an image (PNG)"),
            ("m.gguf", b"\xff\xd8\xff\xe0\0\x10JFIF", "an image (JPEG)"),
            ("m.gguf", b"\x1f\x8b\x08\0\0\0\0\0", "a gzip archive; unpack it"),
            ("m.tar", &tar, "a tar archive; unpack it"),
            ("m.zip", b"PK\x03\x04\x14\0\0\0\0\0model/config.json", "a ZIP archive; unpack it"),
            ("m", b"PK\x03\x04\0\0\0\0archive/data.pkl", "a PyTorch pickle"),
            ("pytorch_model.bin", b"PK\x03\x04", "a PyTorch pickle"),
            ("m.pth", b"\x80\x02\x8a\x0a", "a PyTorch pickle"),
            ("model.onnx", b"\x08\x08\x12\x07pytorch", "an ONNX model"),
            ("m.h5", b"\x89HDF\r\n\x1a\n", "a Keras or HDF5 file"),
            ("m.gguf", &[0; 64], "it begins with zeros"),
            ("m.gguf", b"hello\nthere", "a text that begins \"hello\""),
            ("m.gguf", "grüße".as_bytes(), "a text that begins \"grüße\""),
            ("m.gguf", b"GGU", "a text that begins \"GGU\""),
            ("m.gguf", b"\x01\x02\x03", "it has 3 bytes; download it again"),
            ("m.gguf", b"\x01\x02\x03\x04\x05\x06\x07\x08\x09", "it starts with [01, 02, 03, 04]"),
        ] {
            match of_bytes(name, bytes) {
                Kind::Other(what) => assert!(what.contains(expect), "{bytes:?}: {what}"),
                kind => panic!("{bytes:?}: {kind:?}"),
            }
        }
        assert_eq!(of_bytes("m", b"GGUF"), Kind::Gguf);
        assert_eq!(of_bytes("m", b"\x02\0\0\0\0\0\0\0{}"), Kind::Safetensors);
    }
}
