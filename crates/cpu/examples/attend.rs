//! Measures attention beside the f32 limit of a core, in the same run.
//!
//! `cargo run --release -p tokenmill-cpu --example attend [-- isa … format … store|decode|prefill bias|latents]`,
//! on one thread; with `bias`, of keys of few bits that are kept without one; with `latents`, of those of DeepSeek-V2-Lite. Decode is
//! one token over a long context: GB/s of keys and values, and tokens/s of one layer. Prefill is
//! a whole prompt: GFLOP/s (4 · dim per seen key and query head), and tokens/s of one layer.
//! Where the system says it, times are those the thread was given, not those on the wall.
#![allow(unsafe_code)]

use std::hint::black_box;
use std::sync::Arc;
#[cfg(not(target_os = "linux"))]
use std::time::Instant;

use tokenmill_cpu::attend::rope::Rotation;
use tokenmill_cpu::attend::{
    AttendJob, Item, ItemSource, Keys, KvLayout, LatentLayout, Middles, Rows, Scratch, Steady,
    attend, plan_items,
};
use tokenmill_cpu::isa::Isa;
use tokenmill_cpu::memory::{Buffer, Parts};
use tokenmill_ir::{BlockId, KvFormat, MAX_GROUPS, Mask, RopePairing, Span};

/// (query heads, key heads, columns of a head)
const SHAPES: [(usize, usize, usize); 3] = [(9, 3, 64), (32, 8, 128), (16, 16, 64)];
const FORMATS: [(KvFormat, &str); 6] = [
    (KvFormat::F32, "f32"),
    (KvFormat::Bf16, "bf16"),
    (KvFormat::Int16, "int16"),
    (KvFormat::Int8, "int8"),
    (KvFormat::Int4, "int4"),
    (KvFormat::K8V4, "k8v4"),
];
const PHASES: [&str; 3] = ["store", "decode", "prefill"];
/// Tokens of all caches walked in decode, so that they do not stay in a core's own caches.
const COLD_TOKENS: usize = 65_536;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let named: Vec<Isa> = args.iter().filter_map(|a| Isa::from_name(a)).collect();
    let best = if named.is_empty() { vec![Isa::detect()] } else { named };
    // What no argument of its kind names is measured whole.
    let needs = |name: &str, all: &[&str]| {
        args.iter().any(|a| a == name) || !args.iter().any(|a| all.contains(&a.as_str()))
    };
    println!("f32 peak {:.0} GFLOP/s", peak());
    for isa in best {
        if args.iter().any(|a| a == "latents") {
            for (format, name) in FORMATS.into_iter().filter(|f| f.0.of_latents() == f.0) {
                if needs(name, &FORMATS.map(|f| f.1)) {
                    latents(isa, format, name);
                }
            }
            continue;
        }
        for (heads, kv_heads, dim) in SHAPES {
            for (format, name) in FORMATS {
                if !needs(name, &FORMATS.map(|f| f.1)) {
                    continue;
                }
                let layout = KvLayout { format, kv_heads, k_dim: dim, v_dim: dim };
                let few_bits = !matches!(name, "f32" | "bf16" | "int16");
                let biased = few_bits && args.iter().any(|a| a == "bias");
                let mut bench = Bench::new(isa, heads, layout, biased);
                print!("{:<7} {heads:>2}/{kv_heads:<2} x {dim:<3} {name:<4}", isa.name());
                if needs("store", &PHASES) {
                    print!(" store {:8.0} tok/s", bench.store());
                }
                for context in [256, 1024, 8192].into_iter().filter(|_| needs("decode", &PHASES)) {
                    let seconds = bench.decode(context);
                    let bytes = (layout.block_bytes() / 32 * context) as f64;
                    print!(
                        " {context}: {:5.1} GB/s {:7.0} tok/s",
                        bytes / seconds / 1e9,
                        1.0 / seconds
                    );
                }
                for tokens in [512, 2048].into_iter().filter(|_| needs("prefill", &PHASES)) {
                    let seconds = bench.prefill(tokens);
                    let pairs = (tokens * (tokens + 1) / 2 * heads) as f64;
                    let rate = pairs * 4.0 * dim as f64 / seconds / 1e9;
                    print!(
                        "  pp{tokens}: {rate:5.0} GFLOP/s {:8.0} tok/s",
                        tokens as f64 / seconds
                    );
                }
                println!();
            }
        }
    }
}

/// Heads over latents, groups of them that are computed apart, columns of a latent and of what is beside it.
const LATENTS: (usize, [usize; 2], usize, usize) = (16, [1, 2], 512, 64);

/// Measures attention over latents in its absorbed form: 2 · (2 · latent + rope) operations a key and head.
fn latents(isa: Isa, format: KvFormat, name: &str) {
    let (heads, groups, latent, rope) = LATENTS;
    let layout = LatentLayout { format, latent, rope };
    let rows: Vec<f32> =
        (0..2048 * heads * latent + 99).map(|i| ((i * 7919) % 1009) as f32 / 500.0 - 1.0).collect();
    let mut cache = Buffer::zeroed(layout.block_bytes() * 8192 / 32).expect("memory");
    for token in 0..8192 {
        let (row, key) = (&rows[token % 97..][..latent], &rows[token % 89..][..rope]);
        let at = (token / 32, token % 32);
        // SAFETY: one thread.
        unsafe { layout.store(isa, Parts::new(cache.bytes_mut()), at, row, key) };
    }
    let tables: Vec<BlockId> = (0..8192 / 32).map(BlockId).collect();
    let mut out = vec![0.0; 2048 * heads * latent];
    for kv_heads in groups {
        print!("{:<7} {heads:>2}/{kv_heads:<2} latents {name:<5}", isa.name());
        for (tokens, context) in [(1, 255), (1, 2047), (1, 8191), (512, 0), (2048, 0)] {
            let job = AttendJob {
                heads,
                kv_heads,
                k_dim: latent + rope,
                v_dim: latent,
                scale: 0.02,
                mask: Mask::Causal,
                blocks: &[],
                softcap: None,
                sinks: None,
                q: Rows { data: &rows, stride: heads * latent },
                keys: Keys::Latents {
                    layout,
                    bytes: cache.bytes(),
                    tables: &tables,
                    q_rope: Rows { data: &rows, stride: heads * rope },
                },
                steady: None,
                out: Parts::new(&mut out),
                out_stride: heads * latent,
            };
            let tables = [0; MAX_GROUPS];
            let seconds = time(isa, &job, &[Span { first: 0, len: tokens, context, tables }]);
            let (tokens, context) = (tokens as usize, context as usize);
            let pairs = (tokens * (tokens + 1) / 2 + tokens * context) * heads;
            let rate = (pairs * 2 * (2 * latent + rope)) as f64 / seconds / 1e9;
            print!(
                "  {tokens}@{context}: {rate:5.0} GFLOP/s {:7.0} tok/s",
                tokens as f64 / seconds
            );
        }
        println!();
    }
}

/// A cache full of tokens.
struct Bench {
    isa: Isa,
    heads: usize,
    layout: KvLayout,
    cache: Buffer,
    tables: Vec<BlockId>,
    q: Vec<f32>,
    steady: Option<Steady>,
}

impl Bench {
    fn new(isa: Isa, heads: usize, layout: KvLayout, biased: bool) -> Bench {
        let blocks = COLD_TOKENS / 32;
        let mut cache = Buffer::zeroed(layout.bytes(blocks)).expect("memory");
        let row: Vec<f32> = (0..layout.kv_heads * layout.k_dim + 99)
            .map(|i| ((i * 7919) % 1009) as f32 / 500.0 - 1.0)
            .collect();
        let parts = Parts::new(cache.bytes_mut());
        for token in 0..COLD_TOKENS {
            let (k, v) = (&row[token % 97..], &row[token % 89..]);
            let (k, v) =
                (&k[..layout.kv_heads * layout.k_dim], &v[..layout.kv_heads * layout.v_dim]);
            // SAFETY: one thread.
            unsafe { layout.store(isa, parts, token / 32, token % 32, k, v) };
        }
        let tables = (0..blocks).map(|b| BlockId((b * 641 % blocks) as u32)).collect();
        let q: Vec<f32> = row.iter().cycle().take(2048 * heads * layout.k_dim).copied().collect();
        let freq = (0..layout.k_dim / 2).map(|i| 0.8_f32.powi(i as i32)).collect();
        let rotation =
            Rotation { pairing: RopePairing::Half, freq, magnitude: 1.0, axes: Vec::new() };
        let middles = Some(Arc::new(Middles::new(&rotation, COLD_TOKENS)));
        let bias = row[..layout.kv_heads * layout.k_dim].to_vec();
        let queries = &q[..heads * layout.k_dim];
        let steady = biased.then(|| Steady::new(bias, queries, layout.k_dim, middles));
        Bench { isa, heads, layout, cache, tables, q, steady }
    }

    /// Tokens a second stored, 512 of them again and again.
    fn store(&mut self) -> f64 {
        let KvLayout { kv_heads, k_dim, v_dim, .. } = self.layout;
        let (k, v) = (&self.q[..kv_heads * k_dim], &self.q[..kv_heads * v_dim]);
        let cache = Parts::new(self.cache.bytes_mut());
        let run = || {
            let begin = seconds();
            for token in 0..512 {
                // SAFETY: one thread.
                unsafe { self.layout.store(self.isa, cache, token / 32, token % 32, k, v) };
            }
            seconds() - begin
        };
        512.0 / (0..20).map(|_| run()).fold(f64::INFINITY, f64::min)
    }

    /// Seconds of one token after `context − 1` others, over cold caches.
    fn decode(&self, context: usize) -> f64 {
        let starts = (0..COLD_TOKENS / context).map(|i| (i * context / 32) as u32);
        let spans: Vec<Span> = starts
            .map(|at| Span {
                first: 0,
                len: 1,
                context: context as u32 - 1,
                tables: [at; MAX_GROUPS],
            })
            .collect();
        self.time(&spans) / spans.len() as f64
    }

    /// Seconds of a prompt.
    fn prefill(&self, tokens: usize) -> f64 {
        self.time(&[Span { first: 0, len: tokens as u32, context: 0, tables: [0; MAX_GROUPS] }])
    }

    /// Seconds of a step of these spans: the best of some.
    fn time(&self, spans: &[Span]) -> f64 {
        let KvLayout { kv_heads, k_dim, v_dim, .. } = self.layout;
        let mut out = vec![0.0; 2048 * self.heads * v_dim];
        let job = AttendJob {
            heads: self.heads,
            kv_heads,
            k_dim,
            v_dim,
            scale: 0.125,
            mask: Mask::Causal,
            blocks: &[],
            softcap: None,
            sinks: None,
            q: Rows { data: &self.q, stride: self.heads * k_dim },
            keys: Keys::Cache {
                layout: self.layout,
                bytes: self.cache.bytes(),
                tables: &self.tables,
            },
            steady: self.steady.as_ref(),
            out: Parts::new(&mut out),
            out_stride: self.heads * v_dim,
        };
        time(self.isa, &job, spans)
    }
}

/// Seconds of the attention of these spans: the best of some.
fn time(isa: Isa, job: &AttendJob<'_>, spans: &[Span]) -> f64 {
    let mut items: Vec<Item> = Vec::new();
    plan_items(spans, ItemSource::Cache { group: 0 }, job.heads, job.kv_heads, &mut items);
    let mut scratch = Scratch::new(job.heads, job.kv_heads, job.k_dim, job.v_dim);
    let (start, mut best) = (seconds(), f64::INFINITY);
    while best.is_infinite() || seconds() - start < 0.1 {
        let begin = seconds();
        for (i, item) in items.iter().enumerate() {
            let then = items.get(i + 1);
            // SAFETY: one thread.
            unsafe { attend(isa, black_box(job), item, then, &mut scratch) };
        }
        best = best.min(seconds() - begin);
    }
    best
}

/// Processor time of this thread.
#[cfg(target_os = "linux")]
fn seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Time since the first call.
#[cfg(not(target_os = "linux"))]
fn seconds() -> f64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// f32 operations a second of a core, in 1e9: the best of some loops of independent fmas.
fn peak() -> f64 {
    #[cfg(target_arch = "x86_64")]
    {
        let (fmas, lanes): (unsafe fn(usize) -> f32, _) = if Isa::Avx512.is_available() {
            (fmas_512, 16)
        } else if Isa::Avx2.is_available() {
            (fmas_256, 8)
        } else {
            return f64::NAN;
        };
        let best = (0..20).map(|_| {
            let begin = seconds();
            // SAFETY: the features are there.
            black_box(unsafe { fmas(black_box(20_000)) });
            seconds() - begin
        });
        let best = best.fold(f64::INFINITY, f64::min);
        return (20_000 * SUMS * lanes * 2) as f64 / best / 1e9;
    }
    #[allow(unreachable_code)]
    f64::NAN
}

/// Independent sums: more than a core needs, and they fit sixteen registers.
const SUMS: usize = 12;

/// Rounds over [`SUMS`] vectors of `$ty`.
#[cfg(target_arch = "x86_64")]
macro_rules! fmas {
    ($name:ident, $feature:literal, $splat:ident, $fma:ident, $add:ident, $first:ident) => {
        #[target_feature(enable = $feature)]
        fn $name(rounds: usize) -> f32 {
            use std::arch::x86_64::*;
            let mut sums = [$splat(1.0); SUMS];
            let (a, b) = (black_box($splat(0.5)), black_box($splat(0.25)));
            for _ in 0..rounds {
                for sum in &mut sums {
                    *sum = $fma(*sum, a, b);
                }
            }
            $first(sums.into_iter().reduce(|a, b| $add(a, b)).expect("some"))
        }
    };
}
#[cfg(target_arch = "x86_64")]
fmas!(fmas_512, "avx512f", _mm512_set1_ps, _mm512_fmadd_ps, _mm512_add_ps, _mm512_cvtss_f32);
#[cfg(target_arch = "x86_64")]
fmas!(fmas_256, "avx2,fma", _mm256_set1_ps, _mm256_fmadd_ps, _mm256_add_ps, _mm256_cvtss_f32);
