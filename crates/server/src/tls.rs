//! TLS: a certificate and its key from PEM files, and connections that speak it.

use std::io::Error;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::config::{ServeError, TlsFiles};
use crate::socket::Peer;

/// What connections are taken with: read again while a server runs, for those that come then.
pub struct Tls(RwLock<TlsAcceptor>);

impl Tls {
    /// From the files of a set-up.
    ///
    /// # Errors
    /// Which file cannot be used, and why.
    pub fn new(files: &TlsFiles) -> Result<Arc<Self>, ServeError> {
        Ok(Arc::new(Self(RwLock::new(acceptor(files)?))))
    }

    /// Takes what is in the files now.
    ///
    /// # Errors
    /// Which file cannot be used, and why; then all stays as it was.
    pub fn read_again(&self, files: &TlsFiles) -> Result<(), ServeError> {
        let fresh = acceptor(files)?;
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(())
    }

    /// For one more connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What takes connections over TLS 1.2 and 1.3, as HTTP/1.1; or which file cannot be used, and why.
fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, ServeError> {
    let TlsFiles { certificate, key } = files;
    let of = |path: &Path, why: String| ServeError::BadTls { path: path.to_path_buf(), why };
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
    let chain: Vec<_> = chain.map_err(|error| of(certificate, error.to_string()))?;
    if chain.is_empty() {
        return Err(of(certificate, "it holds no certificate in PEM form".into()));
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| of(key, error.to_string()))?;
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(chain, secret));
    let mut config = config.map_err(|error| of(certificate, error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

impl Peer for TlsStream<TcpStream> {
    fn broken(&self) -> Option<Error> {
        self.get_ref().0.broken()
    }
}
