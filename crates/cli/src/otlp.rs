//! Sends the traces of a server's requests to a collector of OpenTelemetry, on a thread of its own: what
//! it does not take is lost, and told once.

use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tokenmill_server::Traces;

use crate::failure::Failure;
use crate::remote::Remote;

/// Requests of which one message tells at most.
const MOST: usize = 256;
/// For others to end before a message is sent.
const GATHER: Duration = Duration::from_millis(500);
/// Where collectors take traces, by OTLP's specification.
const PATH: &str = "/v1/traces";

/// Begins to send.
///
/// # Errors
/// What is no address, and threads that the system refuses.
pub fn traces(url: &str) -> Result<Traces, Failure> {
    let url = url.trim_end_matches('/');
    let remote = Remote::at(url.strip_suffix(PATH).unwrap_or(url), None)?;
    let (traces, spans) = Traces::new();
    let body = move || send(&remote, &spans);
    let thread = thread::Builder::new().name("traces".into()).spawn(body);
    thread.map_err(|e| Failure::new("cannot send traces", e))?;
    Ok(traces)
}

fn send(remote: &Remote, spans: &Receiver<Vec<Value>>) {
    let mut is_lost = false;
    while let Ok(first) = spans.recv() {
        thread::sleep(GATHER);
        let all = std::iter::once(first).chain(spans.try_iter().take(MOST));
        let body = Traces::body(all.flatten().collect());
        match remote.post_with(PATH, &body, &[]) {
            Ok(_) => is_lost = false,
            Err(failure) if !is_lost => {
                is_lost = true;
                let told = failure.to_string().replace('\n', " ");
                tracing::warn!(target: "tokenmill_server", "traces are lost: {told}");
            }
            Err(_) => {}
        }
    }
}
