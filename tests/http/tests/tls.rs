//! HTTPS, with a certificate made for the test that its client trusts.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tokenmill_http_tests::{Setup, Site};
use tokenmill_server::{ServeError, TlsFiles, spawn};

type Tls = StreamOwned<ClientConnection, TcpStream>;

/// A certificate for localhost and its key, in a folder.
struct Made {
    folder: tempfile::TempDir,
}

impl Made {
    fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("cert.pem"), made.cert.pem()).expect("written");
        fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem())
            .expect("written");
        Self { folder }
    }

    /// Writes another certificate and key into the folder.
    fn renew(&self) {
        let other = Self::new();
        for name in ["cert.pem", "key.pem"] {
            fs::copy(other.file(name), self.file(name)).expect("copied");
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn files(&self) -> TlsFiles {
        TlsFiles { certificate: self.file("cert.pem"), key: self.file("key.pem") }
    }
}

/// A connection of a client that trusts the certificate; nothing is said on it yet.
fn connect(site: &Site, made: &Made) -> std::io::Result<Tls> {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(made.file("cert.pem")).expect("PEM");
    roots.add(certificate).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = ClientConnection::new(Arc::new(config), name).expect("a connection");
    let socket = TcpStream::connect(site.client.address())?;
    Ok(StreamOwned::new(connection, socket))
}

/// The same, greeted.
fn connected(site: &Site, made: &Made) -> Tls {
    let mut stream = connect(site, made).expect("a connection");
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock).expect("greeted");
    }
    stream
}

/// What a client that trusts the certificate gets for a request.
fn ask(site: &Site, made: &Made, request: &str) -> std::io::Result<String> {
    let mut stream = connect(site, made)?;
    stream.write_all(request.as_bytes())?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    Ok(reply)
}

#[test]
fn answers_and_streams_come_over_tls() {
    let made = Made::new();
    let mut setup = Setup::default();
    setup.server.tls = Some(made.files());
    let site = Site::with(setup);
    let body = r#"{"prompt": "a b", "max_tokens": 8, "stream": true}"#;
    let head = "Host: localhost\r\nConnection: close\r\nContent-Type: application/json";
    let length = body.len();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\n{head}\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    let reply = ask(&site, &made, &request).expect("an answer");
    assert!(reply.starts_with("HTTP/1.1 200") && reply.contains("data: [DONE]"), "{reply}");
    // Who speaks plain HTTP gets nothing, and others go on.
    let mut plain = TcpStream::connect(site.client.address()).expect("connected");
    plain.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("sent");
    let mut told = Vec::new();
    let _ = plain.read_to_end(&mut told);
    assert!(!told.starts_with(b"HTTP/"), "{}", String::from_utf8_lossy(&told));
    let request = format!("GET /health HTTP/1.1\r\n{head}\r\n\r\n");
    assert!(ask(&site, &made, &request).expect("an answer").starts_with("HTTP/1.1 200"));
}

#[test]
fn certificates_are_read_again_and_broken_ones_are_not_taken() {
    let (made, old) = (Made::new(), Made::new());
    for name in ["cert.pem", "key.pem"] {
        fs::copy(made.file(name), old.file(name)).expect("copied");
    }
    let mut setup = Setup::default();
    setup.server.tls = Some(made.files());
    let config = setup.server.clone();
    let site = Site::with(setup);
    let control = site.server.as_ref().expect("it runs").control();
    let request = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let trusts = |made: &Made| ask(&site, made, request).is_ok_and(|r| r.contains(" 200 OK"));
    let mut kept = connected(&site, &old);
    assert!(trusts(&old));
    made.renew();
    assert!(trusts(&old) && !trusts(&made), "not yet");
    control.read_tls_again(&config).expect("taken");
    assert!(trusts(&made) && !trusts(&old), "who comes now gets the new one");
    kept.write_all(request.as_bytes()).expect("a connection that was there goes on");
    let mut reply = String::new();
    kept.read_to_string(&mut reply).expect("an answer");
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    fs::write(made.file("key.pem"), "no key").expect("written");
    let error = control.read_tls_again(&config).expect_err("broken");
    assert!(error.to_string().contains("key.pem"), "{error}");
    assert!(trusts(&made), "all stays as it was");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let made = Made::new();
    let file = |name: &str| made.file(name);
    let other = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let cases = [
        (file("none.pem"), file("key.pem"), "none.pem"),
        (other.clone(), file("key.pem"), "Cargo.toml"),
        (file("cert.pem"), other, "Cargo.toml"),
        (file("cert.pem"), file("cert.pem"), "cert.pem"),
    ];
    for (certificate, key, name) in cases {
        let setup = Setup::default();
        let model = setup.model(&tokenmill_device_tests::sim::SimControl::default());
        let mut config = setup.server;
        config.tls = Some(TlsFiles { certificate, key });
        let error = spawn(config, vec![model]).err().expect("refused");
        assert!(matches!(error, ServeError::BadTls { .. }), "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
}
