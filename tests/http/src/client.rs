//! A plain HTTP/1.1 client over a socket: it sends exactly what it is told, reads streams event by
//! event, and can go away at any moment.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// Asks one server.
#[derive(Debug, Clone, Copy)]
pub struct Client {
    address: SocketAddr,
}

/// A whole response.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// Names in lower case, in order.
    pub headers: Vec<(String, String)>,
    /// Body, de-chunked.
    pub body: String,
}

impl Reply {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {self:?}"))
    }

    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The `error` object's member as text, empty when absent.
    pub fn error(&self, member: &str) -> String {
        self.json()["error"][member].as_str().unwrap_or_default().to_owned()
    }

    /// The data of a finished event stream.
    pub fn events(&self) -> Vec<String> {
        let data = |line: &str| line.strip_prefix("data: ").map(str::to_owned);
        self.body.lines().filter_map(data).collect()
    }
}

impl Client {
    /// A client of that server.
    pub fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    /// Where the server is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A fresh connection.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream
    }

    /// GET without anything.
    pub fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], b"")
    }

    /// POST of JSON.
    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_text(path, &body.to_string())
    }

    /// POST of what calls itself JSON.
    pub fn post_text(&self, path: &str, body: &str) -> Reply {
        self.send("POST", path, &[("content-type", "application/json")], body.as_bytes())
    }

    /// Any request with a Host, on a connection of its own.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        self.open(method, path, headers, body).finish()
    }

    /// Sends a request and reads the head of the response.
    pub fn open(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Stream {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head.push_str(&format!("host: {}\r\n", self.address));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("connection: close\r\ncontent-length: {}\r\n\r\n", body.len()));
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body);
        self.raw(&bytes)
    }

    /// Sends the head of a request for a completion that promises a body of that length, and as much of
    /// the body as is given.
    pub fn begin(&self, length: usize, body: &[u8]) -> TcpStream {
        let mut socket = self.connect();
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        );
        socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(body)).expect("sent");
        socket
    }

    /// Sends bytes and reads the head of the response.
    pub fn raw(&self, bytes: &[u8]) -> Stream {
        let mut socket = self.connect();
        // A server may answer and close before all is sent: its answer counts.
        let _ = socket.write_all(bytes);
        Stream::read_head(socket)
    }

    /// Starts a streamed answer.
    pub fn stream(&self, path: &str, body: &Value) -> Stream {
        let mut body = body.clone();
        body["stream"] = json!(true);
        let headers = [("content-type", "application/json")];
        self.open("POST", path, &headers, body.to_string().as_bytes())
    }
}

/// A response being read; dropping it closes the connection.
pub struct Stream {
    reader: BufReader<TcpStream>,
    /// Status and headers; the body stays empty until the end.
    pub reply: Reply,
    /// Bytes of the current chunk left.
    chunk: usize,
    ended: bool,
    partial: String,
}

impl Stream {
    fn read_head(socket: TcpStream) -> Self {
        let mut reader = BufReader::new(socket);
        let mut line = String::new();
        reader.read_line(&mut line).expect("a status line");
        let status = line.split(' ').nth(1).and_then(|s| s.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status in {line:?}"));
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).expect("a header");
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let reply = Reply { status, headers, body: String::new() };
        Self { reader, reply, chunk: 0, ended: false, partial: String::new() }
    }

    /// The data of the next event; `None` at the end.
    pub fn event(&mut self) -> Option<String> {
        loop {
            if let Some((line, rest)) = self.partial.split_once('\n') {
                let data = line.strip_prefix("data: ").map(str::to_owned);
                self.partial = rest.to_owned();
                if data.is_some() {
                    return data;
                }
                continue;
            }
            let more = self.some()?;
            self.partial.push_str(&more);
        }
    }

    /// Reads to the end.
    pub fn finish(mut self) -> Reply {
        let length = self.reply.header("content-length").and_then(|v| v.parse().ok());
        if let Some(length) = length {
            let mut body = vec![0; length];
            self.reader.read_exact(&mut body).expect("the whole body");
            self.reply.body = String::from_utf8(body).expect("UTF-8");
            return self.reply;
        }
        let mut body = std::mem::take(&mut self.partial);
        while let Some(more) = self.some() {
            body.push_str(&more);
        }
        self.reply.body = body;
        self.reply
    }

    /// Some whole chunk; `None` after the last, or when the connection broke.
    fn some(&mut self) -> Option<String> {
        if self.ended {
            return None;
        }
        let mut size = String::new();
        let read = self.reader.read_line(&mut size).unwrap_or(0);
        self.chunk = usize::from_str_radix(size.trim_end(), 16).unwrap_or(0);
        if read == 0 || self.chunk == 0 {
            self.ended = true;
            return None;
        }
        let mut bytes = vec![0; self.chunk + 2];
        self.reader.read_exact(&mut bytes).ok()?;
        bytes.truncate(self.chunk);
        Some(String::from_utf8(bytes).expect("chunks end at characters"))
    }
}
