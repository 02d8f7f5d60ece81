//! Counters and histograms, and their page: families of `prometheus`, which writes them.
//!
//! Own names begin with `tokenmill_`. What vLLM exports under `vllm:` is repeated under those
//! names, so that dashboards made for it work unchanged.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus::TextEncoder;
use prometheus::proto::{self, Bucket, LabelPair, Metric, MetricFamily, MetricType};
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

    fn metric(&self, model: &str) -> Metric {
        let counts = self.buckets.iter().map(|cell| cell.load(Ordering::Relaxed));
        let sum_s = self.sum_micros.load(Ordering::Relaxed) as f64 * 1e-6;
        histogram(model, &self.bounds_s, counts, sum_s)
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

    fn metrics(&self) -> Vec<Metric> {
        let words = STATUSES.iter().map(u16::to_string).chain(["other".to_string()]);
        let one =
            |(word, cell): (String, &AtomicU64)| sample(&[("status", word.as_str())], read(cell));
        words.zip(&self.0).map(one).collect()
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

/// What is exported, in its order.
#[derive(Default)]
pub struct Page(Vec<MetricFamily>);

impl Page {
    /// One more family; one without a metric is not told.
    pub fn add(&mut self, name: &str, kind: MetricType, help: &str, metrics: Vec<Metric>) {
        if metrics.is_empty() {
            return;
        }
        let mut family = MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(kind);
        family.set_metric(metrics);
        self.0.push(family);
    }

    /// The Prometheus text format, version 0.0.4.
    pub fn text(&self) -> String {
        // (It fails for families without a name or a metric.)
        TextEncoder::new().encode_to_string(&self.0).unwrap_or_default()
    }
}

/// A number with its labels, of a family of counters or gauges.
pub fn sample(labels: &[(&str, &str)], value: f64) -> Metric {
    let pair = |(name, value): &(&str, &str)| {
        let mut pair = LabelPair::default();
        pair.set_name((*name).to_owned());
        pair.set_value((*value).to_owned());
        pair
    };
    let mut metric = Metric::from_label(labels.iter().map(pair).collect());
    let (mut counter, mut gauge) = (proto::Counter::default(), proto::Gauge::default());
    counter.set_value(value);
    gauge.set_value(value);
    // (The family says which of them is told.)
    metric.set_counter(counter);
    metric.set_gauge(gauge);
    metric
}

/// Durations of a model by bucket: not more than each bound, then longer ones.
fn histogram(
    model: &str,
    bounds_s: &[f64],
    counts: impl Iterator<Item = u64>,
    sum_s: f64,
) -> Metric {
    let mut total = 0;
    let bounds = bounds_s.iter().copied().chain([f64::INFINITY]);
    let bucket = |(bound, count): (f64, u64)| {
        total += count;
        let mut bucket = Bucket::default();
        bucket.set_upper_bound(bound);
        bucket.set_cumulative_count(total);
        bucket
    };
    let mut buckets: Vec<Bucket> = bounds.zip(counts).map(bucket).collect();
    buckets.pop(); // (the last one is told by the number of all)
    let mut histogram = proto::Histogram::default();
    histogram.set_bucket(buckets);
    histogram.set_sample_count(total);
    histogram.set_sample_sum(sum_s);
    let mut metric = sample(&[("model_name", model)], 0.0);
    metric.set_histogram(histogram);
    metric
}

fn read(cell: &AtomicU64) -> f64 {
    cell.load(Ordering::Relaxed) as f64
}

/// One model's line in every family.
pub struct ModelPage<'a> {
    /// Its name.
    pub model: &'a str,
    /// What the engine knows.
    pub engine: EngineStats,
    /// Tokens of a cache block.
    pub block_tokens: u32,
    /// What the server knows.
    pub server: &'a ModelMetrics,
}

/// A number of the engine, its names and meaning.
struct Row {
    name: &'static str,
    alias: Option<&'static str>,
    kind: MetricType,
    help: &'static str,
    value: fn(&EngineStats) -> f64,
}

macro_rules! row {
    ($name:literal, $alias:expr, $kind:ident, $help:literal, $value:expr) => {
        Row { name: $name, alias: $alias, kind: MetricType::$kind, help: $help, value: $value }
    };
}

#[rustfmt::skip]
const ROWS: &[Row] = &[
    row!("tokenmill_sequences_running", Some("vllm:num_requests_running"), GAUGE,
        "Sequences that hold cache blocks.", |s| f64::from(s.running)),
    row!("tokenmill_sequences_waiting", Some("vllm:num_requests_waiting"), GAUGE,
        "Sequences that wait; requests not yet started are among them.",
        |s| f64::from(s.waiting.max(s.queued_requests))),
    row!("tokenmill_predicted_wait_seconds", None, GAUGE,
        "How long a request of the account with most waiting would wait.", |s| s.wait_s),
    row!("tokenmill_requests_open", None, GAUGE,
        "Requests accepted and not yet ended.", |s| f64::from(s.open_requests)),
    row!("tokenmill_kv_used_ratio", Some("vllm:gpu_cache_usage_perc"), GAUGE,
        "Cache blocks in use by sequences, of all, fullest group, 0 to 1.", used_ratio),
    row!("tokenmill_kv_usage_ratio", Some("vllm:kv_cache_usage_perc"), GAUGE,
        "The same under its newer name.", used_ratio),
    row!("tokenmill_requests_accepted_total", None, COUNTER,
        "Requests the engine accepted.", |s| s.requests as f64),
    row!("tokenmill_requests_cancelled_total", None, COUNTER,
        "Requests whose client went away.", |s| s.cancelled as f64),
    row!("tokenmill_requests_failed_total", None, COUNTER,
        "Requests that failed in the engine.", |s| s.failed as f64),
    row!("tokenmill_prompt_tokens_total", Some("vllm:prompt_tokens_total"), COUNTER,
        "Prompt tokens of started sequences.", |s| s.prompt_tokens as f64),
    row!("tokenmill_cached_tokens_total", Some("vllm:prefix_cache_hits_total"), COUNTER,
        "Prompt tokens found in the prefix cache.", |s| s.cached_tokens as f64),
    row!("tokenmill_disk_tokens_total", None, COUNTER,
        "Of those, read from disk.", |s| s.disk_tokens as f64),
    row!("tokenmill_disk_cache_bytes", None, GAUGE,
        "Bytes of the prompt cache on disk.", |s| s.disk.map_or(0.0, |d| d.log.bytes as f64)),
    row!("tokenmill_disk_runs_written_total", None, COUNTER,
        "Runs of blocks, and states, written to disk.", |s| s.disk.map_or(0.0, |d| d.log.written as f64)),
    row!("tokenmill_disk_runs_read_total", None, COUNTER,
        "Runs and states read from disk.", |s| s.disk.map_or(0.0, |d| d.log.read as f64)),
    row!("tokenmill_disk_runs_damaged_total", None, COUNTER,
        "Runs and states found damaged when wanted.", |s| s.disk.map_or(0.0, |d| d.log.damaged as f64)),
    row!("tokenmill_disk_runs_unwritten_total", None, COUNTER,
        "Runs and states that could not be written.", |s| s.disk.map_or(0.0, |d| d.unwritten as f64)),
    row!("tokenmill_generated_tokens_total", Some("vllm:generation_tokens_total"), COUNTER,
        "Tokens generated.", |s| s.generated_tokens as f64),
    row!("tokenmill_computed_tokens_total", None, COUNTER,
        "Tokens computed, recomputed ones and drafts included.", |s| s.computed_tokens as f64),
    row!("tokenmill_drafted_tokens_total", None, COUNTER,
        "Draft tokens computed.", |s| s.drafted_tokens as f64),
    row!("tokenmill_accepted_draft_tokens_total", None, COUNTER,
        "Draft tokens that were right.", |s| s.accepted_tokens as f64),
    row!("tokenmill_expert_reads_total", None, COUNTER,
        "Experts whose weights were read, one a layer and step.", |s| s.expert_reads as f64),
    row!("tokenmill_expert_bytes_total", None, COUNTER,
        "Stored bytes of those experts.", |s| s.expert_bytes as f64),
    row!("tokenmill_leased_tokens", None, GAUGE,
        "Tokens that leases keep in the cache.", |s| s.leased_tokens as f64),
    row!("tokenmill_leases_broken_total", None, COUNTER,
        "Leases ended early for a sequence that ran alone.", |s| s.broken_leases as f64),
    row!("tokenmill_preemptions_total", Some("vllm:num_preemptions_total"), COUNTER,
        "Times a sequence gave up its blocks for another, or waited a step for want of blocks.",
        |s| s.preemptions as f64),
    row!("tokenmill_host_seconds_total", None, COUNTER,
        "Time between steps: planning, drafts, texts and events.", |s| s.host_seconds),
    row!("tokenmill_token_gap_max_seconds", None, GAUGE,
        "Longest gap so far between two tokens of a running stream.", |s| s.gap_max_s),
    row!("tokenmill_token_gap_bound_seconds", None, GAUGE,
        "Longest such gap that was predicted and promised so far.", |s| s.gap_bound_s),
    row!("tokenmill_late_steps_total", None, COUNTER,
        "Steps that took longer than promised while streams went on.", |s| s.late_steps as f64),
    row!("tokenmill_device_errors_total", None, COUNTER,
        "Times the device had to be rebuilt.", |s| s.device_errors as f64),
    row!("tokenmill_steps_total", None, COUNTER, "Steps of the engine.", |s| s.steps as f64),
];

/// Cache blocks in use by sequences, of all, in the fullest group, 0 to 1.
pub fn used_ratio(stats: &EngineStats) -> f64 {
    let groups = stats.groups.iter().take(stats.group_count).filter(|g| g.total > 0);
    let used = groups.map(|g| {
        let held = g.total.saturating_sub(g.free).saturating_sub(g.cached);
        f64::from(held) / f64::from(g.total)
    });
    used.fold(0.0, f64::max)
}

/// What is told of the server and of each model.
pub fn page(
    models: &[ModelPage<'_>],
    responses: &Responses,
    in_flight: usize,
    unknown_members: u64,
    uptime: Duration,
) -> Page {
    use MetricType::{COUNTER, GAUGE, HISTOGRAM};
    let mut out = Page::default();
    let name = "tokenmill_http_responses_total";
    out.add(name, COUNTER, "Responses by status.", responses.metrics());
    for (name, kind, help, value) in [
        ("tokenmill_uptime_seconds", GAUGE, "Seconds since the start.", uptime.as_secs_f64()),
        (
            "tokenmill_http_requests_in_flight",
            GAUGE,
            "Generations being answered.",
            in_flight as f64,
        ),
        (
            "tokenmill_unknown_members_total",
            COUNTER,
            "Members of requests that nobody knows.",
            unknown_members as f64,
        ),
    ] {
        out.add(name, kind, help, vec![sample(&[], value)]);
    }
    for row in ROWS {
        let one =
            |page: &ModelPage<'_>| sample(&[("model_name", page.model)], (row.value)(&page.engine));
        for name in [Some(row.name), row.alias].into_iter().flatten() {
            out.add(name, row.kind, row.help, models.iter().map(one).collect());
        }
    }
    for (name, kind, help, of) in PARTED {
        out.add(name, *kind, help, models.iter().flat_map(of).collect());
    }
    for (own, alias, help, pick) in HISTOGRAMS {
        let one = |page: &ModelPage<'_>| pick(page.server).metric(page.model);
        for name in [own, alias] {
            out.add(name, HISTOGRAM, help, models.iter().map(one).collect());
        }
    }
    let step = |page: &ModelPage<'_>| {
        let EngineStats { step_histogram, step_seconds, .. } = page.engine;
        histogram(page.model, &STEP_BOUNDS_S, step_histogram.into_iter(), step_seconds)
    };
    let (name, help) = ("tokenmill_step_seconds", "Time of one step of the engine.");
    out.add(name, HISTOGRAM, help, models.iter().map(step).collect());
    out
}

/// Numbers of a model with labels of their own.
type Parts = fn(&ModelPage<'_>) -> Vec<Metric>;

#[rustfmt::skip]
const PARTED: &[(&str, MetricType, &str, Parts)] = &[
    ("tokenmill_kv_blocks", MetricType::GAUGE,
        "Cache blocks by group and state; total = free + cached + used.", blocks),
    ("tokenmill_memory_bytes", MetricType::GAUGE,
        "What each model may take, caches in full use; the process aside.", memory),
    ("tokenmill_requests_total", MetricType::COUNTER,
        "Generation requests by how they ended.", outcomes),
    // What vLLM exports alone.
    ("vllm:request_success_total", MetricType::COUNTER,
        "Choices by why they ended; abort and error: requests.", finished),
    ("vllm:prefix_cache_queries_total", MetricType::COUNTER,
        "Prompt tokens that were looked for in the prefix cache.",
        |page| vec![sample(&[("model_name", page.model)], page.engine.prompt_tokens as f64)]),
    ("vllm:cache_config_info", MetricType::GAUGE,
        "1; its labels are the size of the cache.", cache_config),
];

fn cache_config(page: &ModelPage<'_>) -> Vec<Metric> {
    let blocks = page.engine.groups[0].total.to_string();
    let size = page.block_tokens.to_string();
    let labels = [("model_name", page.model), ("block_size", &size), ("num_gpu_blocks", &blocks)];
    vec![sample(&labels, 1.0)]
}

fn blocks(page: &ModelPage<'_>) -> Vec<Metric> {
    let mut out = Vec::new();
    for (g, n) in page.engine.groups.iter().enumerate().take(page.engine.group_count) {
        let (group, used) = (g.to_string(), n.total.saturating_sub(n.free + n.cached));
        let states = [("total", n.total), ("free", n.free), ("cached", n.cached), ("used", used)];
        out.extend(states.map(|(state, value)| {
            let labels = [("model_name", page.model), ("group", group.as_str()), ("state", state)];
            sample(&labels, f64::from(value))
        }));
    }
    out
}

fn memory(page: &ModelPage<'_>) -> Vec<Metric> {
    let m = page.engine.memory;
    let parts = [
        ("weights", m.weight_bytes),
        ("caches", m.cache_bytes),
        ("buffers", m.buffer_bytes),
        ("vocabulary", m.vocabulary_bytes),
    ];
    let one = |(part, bytes): (&str, u64)| {
        sample(&[("model_name", page.model), ("part", part)], bytes as f64)
    };
    parts.map(one).into()
}

fn outcomes(page: &ModelPage<'_>) -> Vec<Metric> {
    let cells = OUTCOMES.iter().zip(&page.server.outcomes);
    let one = |((_, word), cell): (&(Outcome, &str), &AtomicU64)| {
        sample(&[("model_name", page.model), ("outcome", *word)], read(cell))
    };
    cells.map(one).collect()
}

fn finished(page: &ModelPage<'_>) -> Vec<Metric> {
    let cells = FINISHED.iter().zip(&page.server.finished);
    let one = |(word, cell): (&&str, &AtomicU64)| {
        sample(&[("model_name", page.model), ("finished_reason", *word)], read(cell))
    };
    cells.map(one).collect()
}

type Pick = fn(&ModelMetrics) -> &Histogram;

#[rustfmt::skip]
const HISTOGRAMS: [(&str, &str, &str, Pick); 6] = [
    ("tokenmill_request_queue_seconds", "vllm:request_queue_time_seconds",
        "From submission to the first step, reading its prompt from disk included.", |m| &m.queued),
    ("tokenmill_request_prefill_seconds", "vllm:request_prefill_time_seconds",
        "From the first step to the first token.", |m| &m.prefill),
    ("tokenmill_request_decode_seconds", "vllm:request_decode_time_seconds",
        "From the first token to the end.", |m| &m.decode),
    ("tokenmill_time_to_first_token_seconds", "vllm:time_to_first_token_seconds",
        "From submission to the first token.", |m| &m.first_token),
    ("tokenmill_inter_token_seconds", "vllm:inter_token_latency_seconds",
        "From one token of a choice to the next.", |m| &m.between_tokens),
    ("tokenmill_request_seconds", "vllm:e2e_request_latency_seconds",
        "From submission to the end.", |m| &m.whole),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_inclusive() {
        let histogram = Histogram::new(LONG_BOUNDS_S);
        for ms in [5, 6, 200_000] {
            histogram.observe(Duration::from_millis(ms));
        }
        let mut page = Page::default();
        page.add("x", MetricType::HISTOGRAM, "x", vec![histogram.metric("m")]);
        let out = page.text();
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
        let page = ModelPage { model: "a\"b\n", engine, block_tokens: 16, server: &server };
        let text = super::page(&[page], &Responses::default(), 2, 0, Duration::from_secs(1));
        let text = text.text();
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
