//! Counters and histograms, and their page in the Prometheus text format.
//!
//! Own names begin with `tokenmill_`. What vLLM exports under `vllm:` is repeated under those
//! names, so that dashboards made for it work unchanged.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokenmill_engine::{EngineStats, STEP_BOUNDS_S, StopReason};

/// Upper bounds of the time to the first token and of whole requests, seconds.
const LONG_BOUNDS_S: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];
/// Upper bounds of the time between tokens, seconds.
const SHORT_BOUNDS_S: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5];

/// Durations by bucket.
#[derive(Debug)]
pub struct Histogram {
    bounds_s: [f64; 14],
    /// One more than bounds: the last has none.
    buckets: [AtomicU64; 15],
    sum_micros: AtomicU64,
}

impl Histogram {
    fn new(bounds_s: [f64; 14]) -> Self {
        Self { bounds_s, buckets: Default::default(), sum_micros: AtomicU64::new(0) }
    }

    /// One more duration.
    pub fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = self.bounds_s.partition_point(|&bound| bound < seconds);
        if let Some(cell) = self.buckets.get(bucket) {
            cell.fetch_add(1, Ordering::Relaxed);
        }
        let micros = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.sum_micros.fetch_add(micros, Ordering::Relaxed);
    }

    fn write(&self, out: &mut String, name: &str, model: &str) {
        let counts = self.buckets.iter().map(|cell| cell.load(Ordering::Relaxed));
        let sum_s = self.sum_micros.load(Ordering::Relaxed) as f64 * 1e-6;
        write_histogram(out, name, model, &self.bounds_s, counts, sum_s);
    }
}

/// How a generation ended, as the server saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All choices ended.
    Finished,
    /// The client went away or stopped reading.
    Cancelled,
    /// It failed after it was taken.
    Failed,
}

const OUTCOMES: [(Outcome, &str); 3] = [
    (Outcome::Finished, "finished"),
    (Outcome::Cancelled, "cancelled"),
    (Outcome::Failed, "failed"),
];

/// Why answers end, in the words of vLLM, one for each choice.
const FINISHED: [&str; 4] = ["stop", "length", "abort", "error"];

/// Statuses counted one by one; the last cell is for all others.
const STATUSES: [u16; 14] = [200, 400, 401, 403, 404, 405, 408, 413, 415, 421, 429, 500, 503, 504];

/// Responses by status.
#[derive(Debug, Default)]
pub struct Responses([AtomicU64; STATUSES.len() + 1]);

impl Responses {
    /// One more.
    pub fn sent(&self, status: u16) {
        let at = STATUSES.iter().position(|&s| s == status).unwrap_or(STATUSES.len());
        if let Some(cell) = self.0.get(at) {
            cell.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn write(&self, out: &mut String) {
        let name = "tokenmill_http_responses_total";
        header(out, name, "counter", "Responses by status.");
        let words = STATUSES.iter().map(u16::to_string).chain(["other".to_string()]);
        for (word, cell) in words.zip(&self.0) {
            let _ = writeln!(out, "{name}{{status=\"{word}\"}} {}", cell.load(Ordering::Relaxed));
        }
    }
}

/// What the server counts of one model; the rest the engine counts itself.
#[derive(Debug)]
pub struct ModelMetrics {
    outcomes: [AtomicU64; 3],
    /// From submission to the first token.
    pub first_token: Histogram,
    /// From one token of a choice to the next.
    pub between_tokens: Histogram,
    /// From submission to the end.
    pub whole: Histogram,
    /// From submission to the first step.
    pub queued: Histogram,
    /// From the first step to the first token.
    pub prefill: Histogram,
    /// From the first token to the last.
    pub decode: Histogram,
    /// By [`FINISHED`].
    finished: [AtomicU64; FINISHED.len()],
}

impl Default for ModelMetrics {
    fn default() -> Self {
        Self {
            outcomes: Default::default(),
            first_token: Histogram::new(LONG_BOUNDS_S),
            between_tokens: Histogram::new(SHORT_BOUNDS_S),
            whole: Histogram::new(LONG_BOUNDS_S),
            queued: Histogram::new(LONG_BOUNDS_S),
            prefill: Histogram::new(LONG_BOUNDS_S),
            decode: Histogram::new(LONG_BOUNDS_S),
            finished: Default::default(),
        }
    }
}

impl ModelMetrics {
    /// One more request with that end.
    pub fn ended(&self, outcome: Outcome) {
        let at = OUTCOMES.iter().position(|(o, _)| *o == outcome);
        if let Some(cell) = at.and_then(|i| self.outcomes.get(i)) {
            cell.fetch_add(1, Ordering::Relaxed);
        }
        match outcome {
            Outcome::Finished => {} // its choices were counted
            Outcome::Cancelled => self.finished("abort"),
            Outcome::Failed => self.finished("error"),
        }
    }

    /// One more choice that ended by itself.
    pub fn done(&self, reason: &StopReason) {
        self.finished(if *reason == StopReason::Length { "length" } else { "stop" });
    }

    fn finished(&self, word: &str) {
        let cell = FINISHED.iter().zip(&self.finished).find(|(of, _)| **of == word);
        cell.into_iter().for_each(|(_, cell)| {
            cell.fetch_add(1, Ordering::Relaxed);
        });
    }
}

/// One model's line in every family.
pub struct ModelPage<'a> {
    /// Its name.
    pub model: &'a str,
    /// What the engine knows.
    pub engine: EngineStats,
    /// What the server knows.
    pub server: &'a ModelMetrics,
}

/// A number of the engine, its names and meaning.
struct Row {
    name: &'static str,
    alias: Option<&'static str>,
    kind: &'static str,
    help: &'static str,
    value: fn(&EngineStats) -> f64,
}

macro_rules! row {
    ($name:literal, $alias:expr, $kind:literal, $help:literal, $value:expr) => {
        Row { name: $name, alias: $alias, kind: $kind, help: $help, value: $value }
    };
}

#[rustfmt::skip]
const ROWS: &[Row] = &[
    row!("tokenmill_sequences_running", Some("vllm:num_requests_running"), "gauge",
        "Sequences that hold cache blocks.", |s| f64::from(s.running)),
    row!("tokenmill_sequences_waiting", Some("vllm:num_requests_waiting"), "gauge",
        "Sequences that wait; requests not yet started are among them.",
        |s| f64::from(s.waiting.max(s.queued_requests))),
    row!("tokenmill_predicted_wait_seconds", None, "gauge",
        "How long a request of the account with most waiting would wait.", |s| s.wait_s),
    row!("tokenmill_requests_open", None, "gauge",
        "Requests accepted and not yet ended.", |s| f64::from(s.open_requests)),
    row!("tokenmill_kv_used_ratio", Some("vllm:gpu_cache_usage_perc"), "gauge",
        "Cache blocks in use by sequences, of all, fullest group, 0 to 1.", used_ratio),
    row!("tokenmill_kv_usage_ratio", Some("vllm:kv_cache_usage_perc"), "gauge",
        "The same under its newer name.", used_ratio),
    row!("tokenmill_requests_accepted_total", None, "counter",
        "Requests the engine accepted.", |s| s.requests as f64),
    row!("tokenmill_requests_cancelled_total", None, "counter",
        "Requests whose client went away.", |s| s.cancelled as f64),
    row!("tokenmill_requests_failed_total", None, "counter",
        "Requests that failed in the engine.", |s| s.failed as f64),
    row!("tokenmill_prompt_tokens_total", Some("vllm:prompt_tokens_total"), "counter",
        "Prompt tokens of started sequences.", |s| s.prompt_tokens as f64),
    row!("tokenmill_cached_tokens_total", Some("vllm:prefix_cache_hits_total"), "counter",
        "Prompt tokens found in the prefix cache.", |s| s.cached_tokens as f64),
    row!("tokenmill_disk_tokens_total", None, "counter",
        "Of those, read from disk.", |s| s.disk_tokens as f64),
    row!("tokenmill_disk_cache_bytes", None, "gauge",
        "Bytes of the prompt cache on disk.", |s| s.disk.map_or(0.0, |d| d.log.bytes as f64)),
    row!("tokenmill_disk_runs_written_total", None, "counter",
        "Runs of blocks, and states, written to disk.", |s| s.disk.map_or(0.0, |d| d.log.written as f64)),
    row!("tokenmill_disk_runs_read_total", None, "counter",
        "Runs and states read from disk.", |s| s.disk.map_or(0.0, |d| d.log.read as f64)),
    row!("tokenmill_disk_runs_damaged_total", None, "counter",
        "Runs and states found damaged when wanted.", |s| s.disk.map_or(0.0, |d| d.log.damaged as f64)),
    row!("tokenmill_disk_runs_unwritten_total", None, "counter",
        "Runs and states that could not be written.", |s| s.disk.map_or(0.0, |d| d.unwritten as f64)),
    row!("tokenmill_generated_tokens_total", Some("vllm:generation_tokens_total"), "counter",
        "Tokens generated.", |s| s.generated_tokens as f64),
    row!("tokenmill_computed_tokens_total", None, "counter",
        "Tokens computed, recomputed ones and drafts included.", |s| s.computed_tokens as f64),
    row!("tokenmill_drafted_tokens_total", None, "counter",
        "Draft tokens computed.", |s| s.drafted_tokens as f64),
    row!("tokenmill_accepted_draft_tokens_total", None, "counter",
        "Draft tokens that were right.", |s| s.accepted_tokens as f64),
    row!("tokenmill_expert_reads_total", None, "counter",
        "Experts whose weights were read, one a layer and step.", |s| s.expert_reads as f64),
    row!("tokenmill_expert_bytes_total", None, "counter",
        "Stored bytes of those experts.", |s| s.expert_bytes as f64),
    row!("tokenmill_leased_tokens", None, "gauge",
        "Tokens that leases keep in the cache.", |s| s.leased_tokens as f64),
    row!("tokenmill_leases_broken_total", None, "counter",
        "Leases ended early for a sequence that ran alone.", |s| s.broken_leases as f64),
    row!("tokenmill_preemptions_total", Some("vllm:num_preemptions_total"), "counter",
        "Times a sequence gave up its blocks for another, or waited a step for want of blocks.",
        |s| s.preemptions as f64),
    row!("tokenmill_host_seconds_total", None, "counter",
        "Time between steps: planning, drafts, texts and events.", |s| s.host_seconds),
    row!("tokenmill_token_gap_max_seconds", None, "gauge",
        "Longest gap so far between two tokens of a running stream.", |s| s.gap_max_s),
    row!("tokenmill_token_gap_bound_seconds", None, "gauge",
        "Longest such gap that was predicted and promised so far.", |s| s.gap_bound_s),
    row!("tokenmill_late_steps_total", None, "counter",
        "Steps that took longer than promised while streams went on.", |s| s.late_steps as f64),
    row!("tokenmill_device_errors_total", None, "counter",
        "Times the device had to be rebuilt.", |s| s.device_errors as f64),
    row!("tokenmill_steps_total", None, "counter", "Steps of the engine.", |s| s.steps as f64),
];

fn used_ratio(stats: &EngineStats) -> f64 {
    let groups = stats.groups.iter().take(stats.group_count).filter(|g| g.total > 0);
    let used = groups.map(|g| {
        let held = g.total.saturating_sub(g.free).saturating_sub(g.cached);
        f64::from(held) / f64::from(g.total)
    });
    used.fold(0.0, f64::max)
}

/// The page.
pub fn page(
    models: &[ModelPage<'_>],
    responses: &Responses,
    in_flight: usize,
    unknown_members: u64,
    uptime: Duration,
) -> String {
    let mut out = String::with_capacity(16 << 10);
    responses.write(&mut out);
    header(&mut out, "tokenmill_uptime_seconds", "gauge", "Seconds since the start.");
    let _ = writeln!(out, "tokenmill_uptime_seconds {}", uptime.as_secs_f64());
    header(&mut out, "tokenmill_http_requests_in_flight", "gauge", "Generations being answered.");
    let _ = writeln!(out, "tokenmill_http_requests_in_flight {in_flight}");
    let name = "tokenmill_unknown_members_total";
    header(&mut out, name, "counter", "Members of requests that nobody knows.");
    let _ = writeln!(out, "{name} {unknown_members}");
    for row in ROWS {
        for name in [Some(row.name), row.alias].into_iter().flatten() {
            header(&mut out, name, row.kind, row.help);
            for page in models {
                let (label, value) = (label(page.model), (row.value)(&page.engine));
                let _ = writeln!(out, "{name}{{model_name=\"{label}\"}} {value}");
            }
        }
    }
    blocks(&mut out, models);
    memory(&mut out, models);
    outcomes(&mut out, models);
    finished(&mut out, models);
    histograms(&mut out, models);
    out
}

fn blocks(out: &mut String, models: &[ModelPage<'_>]) {
    let name = "tokenmill_kv_blocks";
    header(out, name, "gauge", "Cache blocks by group and state; total = free + cached + used.");
    for page in models {
        let model = label(page.model);
        for (g, n) in page.engine.groups.iter().enumerate().take(page.engine.group_count) {
            let used = n.total.saturating_sub(n.free).saturating_sub(n.cached);
            for (state, value) in
                [("total", n.total), ("free", n.free), ("cached", n.cached), ("used", used)]
            {
                let labels = format!("model_name=\"{model}\",group=\"{g}\",state=\"{state}\"");
                let _ = writeln!(out, "{name}{{{labels}}} {value}");
            }
        }
    }
}

fn memory(out: &mut String, models: &[ModelPage<'_>]) {
    let name = "tokenmill_memory_bytes";
    header(out, name, "gauge", "What each model may take, caches in full use; the process aside.");
    for page in models {
        let (model, m) = (label(page.model), page.engine.memory);
        for (part, bytes) in [
            ("weights", m.weight_bytes),
            ("caches", m.cache_bytes),
            ("buffers", m.buffer_bytes),
            ("vocabulary", m.vocabulary_bytes),
        ] {
            let _ = writeln!(out, "{name}{{model_name=\"{model}\",part=\"{part}\"}} {bytes}");
        }
    }
}

fn outcomes(out: &mut String, models: &[ModelPage<'_>]) {
    let name = "tokenmill_requests_total";
    header(out, name, "counter", "Generation requests by how they ended.");
    for page in models {
        for ((_, word), cell) in OUTCOMES.iter().zip(&page.server.outcomes) {
            let (model, value) = (label(page.model), cell.load(Ordering::Relaxed));
            let _ = writeln!(out, "{name}{{model_name=\"{model}\",outcome=\"{word}\"}} {value}");
        }
    }
}

/// What vLLM exports alone.
fn finished(out: &mut String, models: &[ModelPage<'_>]) {
    let name = "vllm:request_success_total";
    header(out, name, "counter", "Choices by why they ended; abort and error: requests.");
    for page in models {
        for (word, cell) in FINISHED.iter().zip(&page.server.finished) {
            let (model, value) = (label(page.model), cell.load(Ordering::Relaxed));
            let labels = format!("model_name=\"{model}\",finished_reason=\"{word}\"");
            let _ = writeln!(out, "{name}{{{labels}}} {value}");
        }
    }
    let name = "vllm:prefix_cache_queries_total";
    header(out, name, "counter", "Prompt tokens that were looked for in the prefix cache.");
    for page in models {
        let (model, value) = (label(page.model), page.engine.prompt_tokens);
        let _ = writeln!(out, "{name}{{model_name=\"{model}\"}} {value}");
    }
}

fn histograms(out: &mut String, models: &[ModelPage<'_>]) {
    type Pick = fn(&ModelMetrics) -> &Histogram;
    let families: [(&str, &str, &str, Pick); 6] = [
        (
            "tokenmill_request_queue_seconds",
            "vllm:request_queue_time_seconds",
            "From submission to the first step, reading its prompt from disk included.",
            |m| &m.queued,
        ),
        (
            "tokenmill_request_prefill_seconds",
            "vllm:request_prefill_time_seconds",
            "From the first step to the first token.",
            |m| &m.prefill,
        ),
        (
            "tokenmill_request_decode_seconds",
            "vllm:request_decode_time_seconds",
            "From the first token to the end.",
            |m| &m.decode,
        ),
        (
            "tokenmill_time_to_first_token_seconds",
            "vllm:time_to_first_token_seconds",
            "From submission to the first token.",
            |m| &m.first_token,
        ),
        (
            "tokenmill_inter_token_seconds",
            "vllm:inter_token_latency_seconds",
            "From one token of a choice to the next.",
            |m| &m.between_tokens,
        ),
        (
            "tokenmill_request_seconds",
            "vllm:e2e_request_latency_seconds",
            "From submission to the end.",
            |m| &m.whole,
        ),
    ];
    for (own, alias, help, pick) in families {
        for name in [own, alias] {
            header(out, name, "histogram", help);
            for page in models {
                pick(page.server).write(out, name, page.model);
            }
        }
    }
    let name = "tokenmill_step_seconds";
    header(out, name, "histogram", "Time of one step of the engine.");
    for page in models {
        let counts = page.engine.step_histogram.into_iter();
        write_histogram(out, name, page.model, &STEP_BOUNDS_S, counts, page.engine.step_seconds);
    }
}

fn write_histogram(
    out: &mut String,
    name: &str,
    model: &str,
    bounds_s: &[f64],
    counts: impl Iterator<Item = u64>,
    sum_s: f64,
) {
    let model = label(model);
    let bounds = bounds_s.iter().map(f64::to_string).chain(["+Inf".to_string()]);
    let mut total = 0;
    for (bound, count) in bounds.zip(counts) {
        total += count;
        let _ = writeln!(out, "{name}_bucket{{model_name=\"{model}\",le=\"{bound}\"}} {total}");
    }
    let _ = writeln!(out, "{name}_sum{{model_name=\"{model}\"}} {sum_s}");
    let _ = writeln!(out, "{name}_count{{model_name=\"{model}\"}} {total}");
}

pub fn header(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// A label's value, escaped.
pub fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_inclusive() {
        let histogram = Histogram::new(LONG_BOUNDS_S);
        for ms in [5, 6, 200_000] {
            histogram.observe(Duration::from_millis(ms));
        }
        let mut out = String::new();
        histogram.write(&mut out, "x", "m");
        for line in [
            "x_bucket{model_name=\"m\",le=\"0.005\"} 1",
            "x_bucket{model_name=\"m\",le=\"0.01\"} 2",
            "x_bucket{model_name=\"m\",le=\"120\"} 2",
            "x_bucket{model_name=\"m\",le=\"+Inf\"} 3",
            "x_sum{model_name=\"m\"} 200.011",
            "x_count{model_name=\"m\"} 3",
        ] {
            assert!(out.lines().any(|l| l == line), "{line} in\n{out}");
        }
    }

    #[test]
    fn every_line_of_the_page_is_a_comment_or_a_number() {
        let server = ModelMetrics::default();
        server.ended(Outcome::Failed);
        let mut engine = EngineStats { group_count: 1, ..EngineStats::default() };
        engine.groups[0].total = 10;
        engine.groups[0].free = 4;
        engine.groups[0].cached = 1;
        let page = ModelPage { model: "a\"b\n", engine, server: &server };
        let text = super::page(&[page], &Responses::default(), 2, 0, Duration::from_secs(1));
        for line in text.lines().filter(|l| !l.starts_with("# ")) {
            let value = line.rsplit(' ').next().and_then(|v| v.parse::<f64>().ok());
            assert!(value.is_some(), "{line}");
        }
        for line in [
            r#"vllm:gpu_cache_usage_perc{model_name="a\"b\n"} 0.5"#,
            r#"vllm:kv_cache_usage_perc{model_name="a\"b\n"} 0.5"#,
            r#"tokenmill_kv_blocks{model_name="a\"b\n",group="0",state="used"} 5"#,
            r#"tokenmill_requests_total{model_name="a\"b\n",outcome="failed"} 1"#,
            r#"vllm:num_requests_waiting{model_name="a\"b\n"} 0"#,
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }
}
