//! Clients that go away in every state of a request, by the thousand: no block, request or file
//! handle stays behind. Alone in its process, for handles are counted over all of it.

use std::io::Write;
use std::time::Duration;

use serde_json::json;
use tokenmill_http_tests::{Setup, Site};

const TEXT: &str = "/v1/completions";

/// Open file handles of this process.
fn handles() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// One client that goes away in that state.
fn abort(site: &Site, state: u64, seed: u64) {
    let body = json!({
        "prompt": format!("client {}", seed % 40), "max_tokens": 200, "ignore_eos": true,
        "seed": seed, "n": 1 + seed % 2, "stream": state == 4,
    })
    .to_string();
    let head = format!(
        "POST {TEXT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    let parts: &[&str] = match state {
        0 => &[],
        1 => &[&head[..20]],
        2 => &[&head, &body[..body.len() / 2]],
        3 => &[&head, &body],
        _ => {
            let mut stream = site.client.raw(format!("{head}{body}").as_bytes());
            if stream.reply.status == 200 {
                (0..seed % 4).for_each(|_| drop(stream.event()));
            }
            return;
        }
    };
    let mut socket = site.client.connect();
    parts.iter().for_each(|part| socket.write_all(part.as_bytes()).expect("sent"));
}

#[test]
#[cfg(target_os = "linux")]
fn aborted_requests_leave_no_handle() {
    // More than run at once and more than may wait: some are queued, some refused.
    let step = Duration::from_micros(300);
    let site = Site::with(Setup { sequences: 4, queue: 8, step, ..Setup::default() });
    assert_eq!(site.client.post(TEXT, &json!({ "prompt": "a", "max_tokens": 1 })).status, 200);
    site.settle();
    let before = handles();
    assert!(before > 3, "handles can be counted");
    std::thread::scope(|scope| {
        for client in 0..4 {
            let site = &site;
            scope.spawn(move || (0..300).for_each(|i| abort(site, i % 5, 4 * i + client)));
        }
    });
    site.settle();
    site.wait_until("all handles are closed", |_| handles() <= before);
    assert_eq!(site.client.post(TEXT, &json!({ "prompt": "a", "max_tokens": 1 })).status, 200);
}
