//! The packages: each a function from what is packed to bytes.

use std::io::{Cursor, Write};

use serde_json::json;
use sha2::{Digest, Sha256};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

use super::Packed;
use super::archive::{Entry, ar, gz, sha256, tar};

/// What the Debian package says of itself.
const ABOUT: &str = "runs language models: one binary, the model files people have";

/// The certificates of this machine, for the image.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// All of them by name.
pub fn all(packed: &Packed) -> Result<Vec<(String, Vec<u8>)>, String> {
    let version = &packed.version;
    let platform = match packed.glibc {
        Some((major, minor)) => format!("manylinux_{major}_{minor}_x86_64"),
        None => "manylinux2014_x86_64.musllinux_1_1_x86_64".to_owned(),
    };
    Ok(vec![
        (format!("tokenmill-{version}-x86_64-linux.tar.gz"), archive(packed)?),
        (format!("tokenmill_cli-{version}-py3-none-{platform}.whl"), wheel(packed, &platform)?),
        (format!("tokenmill_{version}_amd64.deb"), deb(packed)?),
        (format!("tokenmill-{version}-oci.tar"), image(packed, certificates()?)?),
    ])
}

fn text(packed: &Packed, name: &str) -> Vec<u8> {
    packed.texts.get(name).cloned().unwrap_or_default()
}

fn licenses(packed: &Packed, folder: &str) -> Vec<Entry> {
    ["README.md", "LICENSE-MIT", "LICENSE-APACHE"]
        .map(|name| Entry::new(format!("{folder}{name}"), text(packed, name)))
        .into()
}

fn archive(packed: &Packed) -> Result<Vec<u8>, String> {
    let mut entries = licenses(packed, "");
    entries.push(Entry::new("bin/tokenmill", packed.program.clone()).program());
    let share = packed.share.iter().cloned();
    entries.extend(share.map(|one| Entry { path: format!("share/{}", one.path), ..one }));
    gz(&tar(&format!("tokenmill-{}/", packed.version), &entries, packed.time))
}

fn wheel(packed: &Packed, platform: &str) -> Result<Vec<u8>, String> {
    let name = format!("tokenmill_cli-{}", packed.version);
    let info = format!("{name}.dist-info");
    let tags: String = platform.split('.').map(|one| format!("Tag: py3-none-{one}\n")).collect();
    let about = format!(
        "Metadata-Version: 2.1\nName: tokenmill-cli\nVersion: {}\nSummary: {ABOUT}\n\
         License: MIT OR Apache-2.0\nDescription-Content-Type: text/markdown\n\n",
        packed.version
    );
    let about = [about.into_bytes(), text(packed, "README.md")].concat();
    let kind = format!("Wheel-Version: 1.0\nGenerator: xtask dist\nRoot-Is-Purelib: false\n{tags}");
    let mut entries = vec![
        Entry::new(format!("{name}.data/scripts/tokenmill"), packed.program.clone()).program(),
        Entry::new(format!("{info}/METADATA"), about),
        Entry::new(format!("{info}/WHEEL"), kind),
    ];
    let licenses = licenses(packed, &format!("{info}/licenses/"));
    entries.extend(licenses.into_iter().filter(|entry| !entry.path.ends_with("README.md")));
    let line = |entry: &Entry| {
        let digest = base64(&Sha256::digest(&entry.bytes));
        format!("{},sha256={digest},{}\n", entry.path, entry.bytes.len())
    };
    let mut record: String = entries.iter().map(line).collect();
    record += &format!("{info}/RECORD,,\n");
    entries.push(Entry::new(format!("{info}/RECORD"), record));
    let mut out = ZipWriter::new(Cursor::new(Vec::new()));
    for Entry { path, mode, bytes } in &entries {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .compression_level(Some(9))
            .last_modified_time(DateTime::default())
            .unix_permissions(*mode);
        let started = out.start_file(path.as_str(), options);
        started.map_err(|e| e.to_string())?;
        out.write_all(bytes).map_err(|e| e.to_string())?;
    }
    Ok(out.finish().map_err(|e| e.to_string())?.into_inner())
}

/// Base64 for URLs, without padding, as wheels want digests.
fn base64(bytes: &[u8]) -> String {
    const SIGNS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut out = String::new();
    for three in bytes.chunks(3) {
        let number =
            (0..3).fold(0_u32, |all, at| all << 8 | u32::from(*three.get(at).unwrap_or(&0)));
        let signs = (0..=three.len()).map(|at| SIGNS[(number >> (18 - 6 * at) & 63) as usize]);
        out.extend(signs.map(char::from));
    }
    out
}

fn deb(packed: &Packed) -> Result<Vec<u8>, String> {
    let (version, time) = (&packed.version, packed.time);
    let mut data = vec![
        Entry::new("usr/bin/tokenmill", packed.program.clone()).program(),
        Entry::new("etc/tokenmill/config.toml", text(packed, "packaging/config.toml")),
        Entry::new(
            "usr/lib/systemd/system/tokenmill.service",
            text(packed, "packaging/tokenmill.service"),
        ),
        Entry::new(
            "usr/lib/sysusers.d/tokenmill.conf",
            text(packed, "packaging/tokenmill.sysusers"),
        ),
        Entry::new(
            "usr/share/doc/tokenmill/copyright",
            [&text(packed, "LICENSE-MIT")[..], b"\n", &text(packed, "LICENSE-APACHE")].concat(),
        ),
    ];
    let share = packed.share.iter().cloned();
    data.extend(share.map(|one| {
        let path = one.path.replace("zsh/site-functions", "zsh/vendor-completions");
        Entry { path: format!("usr/share/{path}"), ..one }
    }));
    let has_gcc = packed.libraries.iter().any(|(path, _)| path.contains("libgcc_s"));
    let gcc = if has_gcc { "libgcc-s1, " } else { "" };
    let libc = packed.glibc.map(|(major, minor)| format!("libc6 (>= {major}.{minor}), {gcc}"));
    let bytes: usize = data.iter().map(|entry| entry.bytes.len()).sum();
    let about = format!(
        "Package: tokenmill\nVersion: {version}\nArchitecture: amd64\n\
         Maintainer: tokenmill contributors <tokenmill@localhost>\nInstalled-Size: {}\n\
         Depends: {}ca-certificates\nRecommends: systemd\nSection: science\nPriority: optional\n\
         Description: {ABOUT}\n Chats, completes, embeds and ranks on the command line and over the APIs of\n \
         OpenAI, Anthropic, Ollama and llama.cpp. The same request gives the same bytes.\n",
        bytes.div_ceil(1024),
        libc.unwrap_or_default(),
    );
    let script =
        |name: &str| Entry::new(name, text(packed, &format!("packaging/{name}"))).program();
    let control = [
        Entry::new("control", about),
        Entry::new("conffiles", "/etc/tokenmill/config.toml\n"),
        script("postinst"),
        script("prerm"),
        script("postrm"),
    ];
    let parts = [
        Entry::new("debian-binary", "2.0\n"),
        Entry::new("control.tar.gz", gz(&tar("./", &control, time))?),
        Entry::new("data.tar.gz", gz(&tar("./", &data, time))?),
    ];
    Ok(ar(&parts, time))
}

fn certificates() -> Result<Vec<u8>, String> {
    std::fs::read(CERTIFICATES).map_err(|error| format!("{CERTIFICATES}: {error}"))
}

/// An image of one layer: the program, what it is linked with, certificates; it serves, as nobody.
fn image(packed: &Packed, certificates: Vec<u8>) -> Result<Vec<u8>, String> {
    let mut files = vec![
        Entry::new("usr/bin/tokenmill", packed.program.clone()).program(),
        Entry::new(&CERTIFICATES[1..], certificates),
        Entry::new("etc/passwd", "nobody:x:65534:65534:nobody:/models:/none\n"),
        Entry::new("etc/group", "nobody:x:65534:\n"),
        // (Nobody writes there what is fetched, also where a volume begins as its copy.)
        Entry { path: "models/".to_owned(), mode: 0o777, bytes: Vec::new() },
    ];
    files.extend(
        packed
            .libraries
            .iter()
            .map(|(path, bytes)| Entry::new(path.trim_start_matches('/'), bytes.clone()).program()),
    );
    let layer = tar("", &files, packed.time);
    let packed_layer = gz(&layer)?;
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {
            "User": "65534:65534",
            "Env": ["PATH=/usr/bin", "HOME=/models", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"],
            "Entrypoint": ["/usr/bin/tokenmill"],
            "Cmd": ["serve", "--host", "0.0.0.0"],
            "ExposedPorts": { "8080/tcp": {} },
            "Volumes": { "/models": {} },
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "tokenmill",
                "org.opencontainers.image.version": packed.version,
                "org.opencontainers.image.licenses": "MIT OR Apache-2.0",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", sha256(&layer))] },
        "history": [{ "created_by": "cargo xtask dist" }],
    });
    let config = config.to_string().into_bytes();
    let blob = |bytes: &[u8], kind: &str| {
        let digest = format!("sha256:{}", sha256(bytes));
        json!({ "mediaType": format!("application/vnd.oci.image.{kind}"), "digest": digest, "size": bytes.len() })
    };
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(&config, "config.v1+json"),
        "layers": [blob(&packed_layer, "layer.v1.tar+gzip")],
    });
    let manifest = manifest.to_string().into_bytes();
    let mut of_index = blob(&manifest, "manifest.v1+json");
    // (Podman and containerd call it by the second; without, podman's name of it is the version.)
    of_index["annotations"] = json!({
        "org.opencontainers.image.ref.name": packed.version,
        "io.containerd.image.name": format!("localhost/tokenmill:{}", packed.version),
    });
    of_index["platform"] = json!({ "architecture": "amd64", "os": "linux" });
    let index = json!({ "schemaVersion": 2, "manifests": [of_index] });
    let named = |bytes: Vec<u8>| Entry::new(format!("blobs/sha256/{}", sha256(&bytes)), bytes);
    let entries = [
        Entry::new("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#),
        Entry::new("index.json", index.to_string()),
        named(config),
        named(manifest),
        named(packed_layer),
    ];
    Ok(tar("", &entries, packed.time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::io::Read;

    use serde_json::Value;

    #[test]
    fn digests_are_written_as_wheels_want_them() {
        for (bytes, expect) in [(&b""[..], ""), (b"f", "Zg"), (b"fo", "Zm8"), (b"foo?>", "Zm9vPz4")]
        {
            assert_eq!(base64(bytes), expect);
        }
    }

    fn packed() -> Packed {
        Packed {
            version: "1.2.3".to_owned(),
            time: 1_700_000_000,
            program: b"program".to_vec(),
            glibc: Some((2, 28)),
            libraries: vec![("/lib/x/libc.so.6".to_owned(), b"libc".to_vec())],
            share: vec![Entry::new("man/man1/tokenmill.1.gz", "page")],
            texts: [("LICENSE-MIT", b"MIT".to_vec())].into(),
        }
    }

    /// What is in a tar file, by name: permissions and bytes. Everything is root's.
    fn untar(tar: &[u8]) -> BTreeMap<String, (u32, Vec<u8>)> {
        let text = |bytes: &[u8]| {
            let text = bytes.split(|byte| *byte == 0).next().unwrap();
            std::str::from_utf8(text).unwrap().to_owned()
        };
        let number = |bytes: &[u8]| u32::from_str_radix(&text(bytes), 8).unwrap();
        let (mut found, mut rest) = (BTreeMap::new(), tar);
        while rest.len() > 1024 {
            let (header, after) = rest.split_at(512);
            let [mode, user, group] = [100, 108, 116].map(|at| number(&header[at..at + 8]));
            assert_eq!([user, group], [0, 0]);
            let size = number(&header[124..136]) as usize;
            found.insert(text(&header[..100]), (mode, after[..size].to_vec()));
            rest = &after[size.next_multiple_of(512)..];
        }
        found
    }

    /// The image's configuration and the files of its layer, found as what runs images finds them.
    fn opened(image: &[u8]) -> (Value, BTreeMap<String, (u32, Vec<u8>)>) {
        let files = untar(image);
        let blob = |of: &Value| {
            let digest = of["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
            let bytes = files[&format!("blobs/sha256/{digest}")].1.clone();
            assert_eq!(
                (sha256(&bytes), bytes.len()),
                (digest.to_owned(), of["size"].as_u64().unwrap() as usize)
            );
            bytes
        };
        let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
        let index = json(&files["index.json"].1);
        let name = &index["manifests"][0]["annotations"]["io.containerd.image.name"];
        assert_eq!(name, "localhost/tokenmill:1.2.3");
        let manifest = json(&blob(&index["manifests"][0]));
        let mut layer = Vec::new();
        let packed = blob(&manifest["layers"][0]);
        flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut layer).unwrap();
        (json(&blob(&manifest["config"])), untar(&layer))
    }

    #[test]
    fn the_image_runs_as_nobody_who_writes_to_models_alone() {
        let image = image(&packed(), b"certificates".to_vec()).unwrap();
        let (config, files) = opened(&image);
        assert_eq!(config["config"]["User"], "65534:65534");
        let set = config["config"]["Env"].as_array().unwrap();
        assert!(set.contains(&json!("HOME=/models")), "{set:?}");
        assert!(config["config"]["Volumes"].get("/models").is_some());
        let writable: Vec<&str> = files
            .iter()
            .filter(|(_, (mode, _))| mode & 0o002 != 0)
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(writable, ["models/"]);
        for (name, (mode, _)) in &files {
            let needed = if name.ends_with('/') { 0o005 } else { 0o004 };
            assert_eq!(mode & needed, needed, "{name}: {mode:o}");
        }
        for name in ["usr/bin/tokenmill", "lib/x/libc.so.6"] {
            assert_eq!(files[name].0, 0o755, "{name}");
        }
        let passwd = String::from_utf8(files["etc/passwd"].1.clone()).unwrap();
        assert!(passwd.starts_with("nobody:x:65534:65534:") && passwd.contains(":/models:"));
    }

    #[test]
    fn packages_are_the_same_each_time() {
        let packed = packed();
        let made = |packed: &Packed| {
            [
                archive(packed),
                wheel(packed, "linux"),
                deb(packed),
                image(packed, b"certificates".to_vec()),
            ]
        };
        let first = made(&packed);
        assert_eq!(first, made(&packed));
        let deb = first[2].as_ref().unwrap();
        assert!(deb.starts_with(
            b"!<arch>\ndebian-binary   1700000000  0     0     100644  4         `\n2.0\n"
        ));
        assert!(first[1].as_ref().unwrap().starts_with(b"PK"));
    }
}
