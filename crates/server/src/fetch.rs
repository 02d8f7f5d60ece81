//! Images from elsewhere: fetched only where that is switched on, and only from addresses that are
//! everybody's. What a name resolves to is looked at before anything is sent, and the connection goes
//! to what was looked at; so it is for every redirect.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, HeaderMap, LOCATION};
use reqwest::{Client, Response, Url, redirect};
use rustls::ClientConfig;
use rustls::crypto::ring;
use rustls_platform_verifier::BuilderVerifierExt;
use tokio::net::lookup_host;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::error::ApiError;
use crate::fields::shown;

/// Redirects that are followed.
const HOPS: usize = 3;
/// For all images of a request.
const TIME: Duration = Duration::from_secs(20);
/// To reach a server.
const CONNECT: Duration = Duration::from_secs(5);
/// Requests whose images are fetched at once.
const AT_ONCE: usize = 8;

/// Whence images are fetched.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageHosts {
    /// Hosts whose addresses need not be everybody's: names, or addresses.
    pub named: Vec<String>,
}

/// Fetches.
#[derive(Debug)]
pub struct Fetcher {
    client: Client,
    named: Arc<[String]>,
    places: Semaphore,
}

/// Why something is not fetched, in words without the address that a name led to.
type Why = String;

impl Fetcher {
    /// One that fetches so.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn new(hosts: &ImageHosts) -> Result<Self, String> {
        let named: Arc<[String]> =
            hosts.named.iter().map(|name| name.to_ascii_lowercase()).collect();
        let resolver = Resolver { named: Arc::clone(&named) };
        let client = Client::builder()
            .user_agent(concat!("tokenmill/", env!("CARGO_PKG_VERSION")))
            .tls_backend_preconfigured(tls()?)
            .redirect(redirect::Policy::none())
            .connect_timeout(CONNECT)
            .timeout(TIME)
            // (A proxy would look names up itself.)
            .no_proxy()
            .dns_resolver(Arc::new(resolver))
            .build()
            .map_err(|error| error.to_string())?;
        Ok(Self { client, named, places: Semaphore::new(AT_ONCE) })
    }

    /// The files at these addresses, at most so many bytes of each and of all; `path` of each is the
    /// part of the request that asks for it.
    ///
    /// # Errors
    /// 400 naming the first that cannot be had.
    pub async fn files(
        &self,
        wanted: &[(String, String)],
        (each, all): (usize, usize),
    ) -> Result<Vec<Vec<u8>>, ApiError> {
        let (mut files, mut left) = (Vec::with_capacity(wanted.len()), all);
        let fetched = async {
            let _place = self.places.acquire().await;
            for (path, url) in wanted {
                let file = self.file(url, each.min(left)).await;
                let file = file.map_err(|why| not_fetched(path, &why))?;
                left -= file.len();
                files.push(file);
            }
            Ok(())
        };
        match timeout(TIME, fetched).await {
            Ok(done) => done.map(|()| files),
            Err(_) => {
                let at = wanted.get(files.len()).map_or("images", |(path, _)| path.as_str());
                Err(not_fetched(at, &format!("it did not come within {} s", TIME.as_secs())))
            }
        }
    }

    async fn file(&self, url: &str, most: usize) -> Result<Vec<u8>, Why> {
        let mut url = Url::parse(url).map_err(|error| format!("it is no address: {error}"))?;
        for _ in 0..=HOPS {
            self.check(&url)?;
            let response = self
                .client
                .get(url.clone())
                .header(ACCEPT, "image/*")
                .header(ACCEPT_ENCODING, "identity")
                .send()
                .await
                .map_err(|error| told(&error))?;
            match response.status().as_u16() {
                200 => return body(response, most).await,
                300..=303 | 307 | 308 => url = next(&url, response.headers())?,
                other => return Err(format!("the answer was {other}")),
            }
        }
        Err(format!("it was sent on more than {HOPS} times"))
    }

    /// Whether an address may be asked, as far as it says so itself.
    fn check(&self, url: &Url) -> Result<(), Why> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err("only http and https are spoken".to_owned());
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err("it has a user's name in it".to_owned());
        }
        let host = url.host_str().unwrap_or_default();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        match bare.parse::<IpAddr>() {
            Ok(address) if !is_public(address) && !is_named(&self.named, bare) => {
                Err(NOT_PUBLIC.to_owned())
            }
            _ => Ok(()),
        }
    }
}

/// What is told of names that lead nowhere, and of those that lead where images are not fetched from:
/// who asks learns nothing of what is around this server.
const NOT_PUBLIC: &str = "its host has no public address";

fn is_named(named: &[String], host: &str) -> bool {
    named.iter().any(|name| name.eq_ignore_ascii_case(host))
}

fn not_fetched(path: &str, why: &str) -> ApiError {
    let message = format!("{path} could not be fetched: {why}");
    ApiError { code: Some("image_not_fetched"), ..ApiError::bad(path, message) }
}

/// The next address of a redirect; https is not left for http.
fn next(from: &Url, headers: &HeaderMap) -> Result<Url, Why> {
    let location = headers.get(LOCATION).and_then(|value| value.to_str().ok());
    let location = location.ok_or("it was sent on to no address")?;
    let next = from.join(location).map_err(|_| "it was sent on to no address")?;
    match (from.scheme(), next.scheme()) {
        (_, "https") | ("http", "http") => Ok(next),
        (_, other) => Err(format!("it was sent on from https to {}", shown(other))),
    }
}

/// The body, unpacked, if it is no longer than that.
async fn body(mut response: Response, most: usize) -> Result<Vec<u8>, Why> {
    let coding = response.headers().get(CONTENT_ENCODING);
    if coding.is_some_and(|coding| coding != "identity") {
        return Err("the answer is packed, which was not asked for".to_owned());
    }
    let too_long = || format!("it has more than {most} bytes");
    if response.content_length().is_some_and(|length| length > most as u64) {
        return Err(too_long());
    }
    let mut file = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| told(&error))? {
        if file.len() + chunk.len() > most {
            return Err(too_long());
        }
        file.extend_from_slice(&chunk);
    }
    Ok(file)
}

/// An error of the client without addresses.
fn told(error: &reqwest::Error) -> Why {
    let mut cause: Option<&dyn Error> = Some(error);
    while let Some(one) = cause {
        if one.is::<NotPublic>() {
            return NOT_PUBLIC.to_owned();
        }
        cause = one.source();
    }
    let why = if error.is_timeout() {
        "it did not come in time"
    } else if error.is_connect() {
        "its host did not answer"
    } else {
        "the answer broke off"
    };
    why.to_owned()
}

/// TLS by *ring* and the system's roots; without any, none is trusted.
fn tls() -> Result<ClientConfig, String> {
    let builder = || {
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())
    };
    match builder()?.with_platform_verifier() {
        Ok(config) => Ok(config.with_no_client_auth()),
        Err(_) => {
            let none = rustls::RootCertStore::empty();
            Ok(builder()?.with_root_certificates(none).with_no_client_auth())
        }
    }
}

/// A name led to no address that is asked.
#[derive(Debug, thiserror::Error)]
#[error("{NOT_PUBLIC}")]
struct NotPublic;

/// Names as addresses, without those that are not everybody's.
struct Resolver {
    named: Arc<[String]>,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let named = Arc::clone(&self.named);
        Box::pin(async move {
            let host = name.as_str();
            let found = lookup_host((host, 0)).await.map_err(|_| NotPublic)?;
            let free = is_named(&named, host.trim_end_matches('.'));
            let asked: Vec<SocketAddr> =
                found.filter(|address| free || is_public(address.ip())).collect();
            match asked.is_empty() {
                true => Err(NotPublic.into()),
                false => Ok(Box::new(asked.into_iter()) as Addrs),
            }
        })
    }
}

/// Whether an address is one of the public internet: none of this machine, its networks, or those set
/// aside (RFC 6890 and the registries of special addresses).
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let set_aside = match (a, b) {
        (0 | 10 | 127, _) | (224.., _) => true,
        (100, 64..=127) | (169, 254) | (172, 16..=31) | (192, 168) | (198, 18 | 19) => true,
        (192, 0) => c == 0 || c == 2,
        (192, 88) => c == 99,
        (198, 51) => c == 100,
        (203, 0) => c == 113,
        _ => false,
    };
    !set_aside
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let [a, b, c, ..] = address.segments();
    let low = |at: usize| {
        let octets = address.octets();
        Ipv4Addr::new(octets[at], octets[at + 1], octets[at + 2], octets[at + 3])
    };
    match (a, b) {
        // Addresses of the older kind, written in the newer; through a gateway; in a tunnel.
        (0, 0) => address.to_ipv4_mapped().is_some_and(is_public_v4),
        (0x64, 0xff9b) => c == 0 && is_public_v4(low(12)),
        (0x2002, _) => is_public_v4(low(2)),
        // Tunnels, benchmarks, keys and examples.
        (0x2001, 0..=0x1ff | 0xdb8) | (0x3fff, _) => false,
        (0x2000..=0x3fff, _) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn addresses_of_ones_own_are_not_public() {
        for address in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "192.0.0.8",
            "192.0.2.1",
            "198.18.0.1",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::10.0.0.1",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "2001:db8::1",
            "2001::1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::1",
            "2002:7f00:1::",
            "2002:a00:1::",
            "100::1",
            "5f00::1",
        ] {
            assert!(!is_public(address.parse().expect(address)), "{address}");
        }
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "172.32.0.1",
            "100.128.0.1",
            "192.1.0.1",
            "223.255.255.254",
            "2606:4700::1111",
            "2a00:1450::1",
            "64:ff9b::808:808",
            "2002:808:808::",
            "::ffff:8.8.8.8",
        ] {
            assert!(is_public(address.parse().expect(address)), "{address}");
        }
    }

    /// Answers each connection with the next of these, whatever is asked.
    fn site(answers: Vec<String>) -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        std::thread::spawn(move || {
            for answer in answers {
                let Ok((mut stream, _)) = listener.accept() else { return };
                let mut asked = [0; 4096];
                let _ = stream.read(&mut asked);
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        port
    }

    fn ok(body: &str) -> String {
        let length = body.len();
        format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
    }

    fn to(place: &str) -> String {
        format!(
            "HTTP/1.1 302 Found\r\nlocation: {place}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        )
    }

    async fn fetched(named: &[&str], url: String, most: usize) -> Result<Vec<u8>, String> {
        let named = named.iter().map(|name| (*name).to_owned()).collect();
        let fetcher = Fetcher::new(&ImageHosts { named }).expect("a fetcher");
        let found = fetcher.files(&[("m[0]".into(), url)], (most, most)).await;
        found.map(|mut files| files.remove(0)).map_err(|error| {
            assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("m[0]")));
            error.message
        })
    }

    #[tokio::test]
    async fn no_private_address_is_asked_by_any_name() {
        // (Nobody listens for what is refused before it is sent.)
        for url in [
            "http://127.0.0.1:1/",
            "http://localhost:1/",
            "http://[::1]:1/",
            "http://2130706433:1/",
            "http://0x7f.1:1/",
            "http://0177.0.0.1:1/",
            "http://127.1:1/",
            "http://0/",
            "http://[::ffff:127.0.0.1]:1/",
            "http://169.254.169.254/latest/meta-data/",
            "http://LOCALHOST.:1/",
        ] {
            let why = fetched(&[], url.into(), 99).await.expect_err(url);
            assert!(why.contains(NOT_PUBLIC), "{url}: {why}");
        }
        for url in ["ftp://1.1.1.1/", "file:///etc/passwd", "http://a:b@1.1.1.1/", "http://"] {
            fetched(&[], url.into(), 99).await.expect_err(url);
        }
    }

    #[tokio::test]
    async fn a_name_of_nobody_is_no_public_one() {
        // (Without the client, whose patience may be shorter than this machine's way to ask for names.)
        let resolver = Resolver { named: Arc::default() };
        let found = resolver.resolve("nobody.invalid".parse().expect("a name")).await;
        assert!(found.is_err_and(|error| error.is::<NotPublic>()));
    }

    #[tokio::test]
    async fn named_hosts_are_asked_and_what_they_send_is_bounded() {
        let get = |answers: Vec<String>| format!("http://127.0.0.1:{}/a.png", site(answers));
        let named = ["127.0.0.1"];
        assert_eq!(fetched(&named, get(vec![ok("file")]), 4).await, Ok(b"file".to_vec()));
        let long = fetched(&named, get(vec![ok("files")]), 4).await.expect_err("too long");
        assert!(long.contains("more than 4 bytes"), "{long}");
        // Without a length that is told before.
        let open = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nfiles".to_owned();
        let long = fetched(&named, get(vec![open]), 4).await.expect_err("too long");
        assert!(long.contains("more than 4 bytes"), "{long}");
        let packed = "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\nfile";
        let packed = fetched(&named, get(vec![packed.into()]), 9).await.expect_err("packed");
        assert!(packed.contains("packed"), "{packed}");
        let gone = "HTTP/1.1 404 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned();
        let gone = fetched(&named, get(vec![gone]), 9).await.expect_err("gone");
        assert!(gone.contains("404"), "{gone}");
    }

    #[tokio::test]
    async fn redirects_are_looked_at_like_any_address() {
        let named = ["127.0.0.1"];
        let get = |answers: Vec<String>| format!("http://127.0.0.1:{}/a.png", site(answers));
        let there = format!("http://127.0.0.1:{}/b.png", site(vec![ok("b")]));
        assert_eq!(fetched(&named, get(vec![to(&there)]), 9).await, Ok(b"b".to_vec()));
        for place in [
            "http://localhost:1/",
            "http://[::1]:1/",
            "http://169.254.169.254/",
            "http://10.0.0.1/",
        ] {
            let why = fetched(&named, get(vec![to(place)]), 9).await.expect_err(place);
            assert!(why.contains(NOT_PUBLIC), "{place}: {why}");
        }
        for place in ["file:///etc/passwd", "gopher://1.1.1.1/"] {
            fetched(&named, get(vec![to(place)]), 9).await.expect_err(place);
        }
        let round = fetched(&named, get(vec![to("/a"), to("/a"), to("/a"), to("/a"), to("/a")]), 9);
        assert!(round.await.expect_err("round and round").contains("more than 3 times"));
    }
}
