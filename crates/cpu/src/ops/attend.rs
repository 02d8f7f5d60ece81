//! Attention over a paged cache: who computes which queries, heads and chunks.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokenmill_ir::{Mask, Rows as RowKind, Span};

use super::attention::{
    CHUNK, PARTIAL_HEAD, QUERIES, Query, Rule, Unit, merge_partials, partial, whole,
};
use crate::exec::{Job, Kernel, QUERY_TOKENS};
use crate::plan::{Cols, NARROW};
use crate::weight::Weight;

/// The attention of one layer.
#[derive(Debug, Clone)]
pub(crate) struct Attend {
    pub q: Cols,
    pub out: Cols,
    pub heads: usize,
    pub kv_heads: usize,
    pub k_dim: usize,
    pub v_dim: usize,
    pub rule: Rule,
    pub mask: Mask,
    pub sinks: Option<Arc<Weight>>,
    pub cache: usize,
    pub counter: usize,
    /// Place of partial results, and chunks a sequence may have.
    pub partials: Cols,
    pub max_chunks: usize,
}

impl Attend {
    /// The keys that the query of token `i` of a span sees.
    fn seen(&self, span: &Span, i: usize) -> Range<usize> {
        let last = span.context as usize + i;
        match self.mask {
            Mask::Causal => 0..last + 1,
            Mask::Window(n) => (last + 1).saturating_sub(n as usize)..last + 1,
            Mask::None => 0..(span.context + span.len) as usize,
        }
    }

    fn sink(&self, head: usize) -> Option<f32> {
        self.sinks.as_ref().map(|s| s.vector()[head])
    }

    fn query(&self, job: &Job<'_>, span: &Span, i: usize, head: usize) -> Query {
        let seen = self.seen(span, i);
        let q = Cols { start: self.q.start + head * self.k_dim, cols: self.k_dim, ..self.q };
        let q = job.read(q, span.first as usize + i).as_ptr();
        Query { q, first: seen.start, end: seen.end }
    }

    /// f32 of one partial result.
    fn step(&self, job: &Job<'_>) -> usize {
        PARTIAL_HEAD + job.step.caches[self.cache].v_stride
    }

    /// First f32 of the partial result of a chunk.
    fn partial_at(&self, job: &Job<'_>, row: usize, head: usize, chunk: usize) -> *mut f32 {
        let at = ((row * self.heads + head) * self.max_chunks + chunk) * self.step(job);
        // SAFETY: inside the place, which is made for NARROW rows of all heads and chunks.
        unsafe { job.start(self.partials.place).add(at) }
    }

    /// Few tokens: every chunk of every key head is a unit of its own.
    fn few(&self, job: &Job<'_>) {
        let group = self.heads / self.kv_heads;
        let mut first_unit = 0;
        let mut tokens = [(0, 0); NARROW];
        let mut total = 0;
        for (s, span) in job.step.batch.spans.iter().enumerate() {
            for i in 0..span.len as usize {
                tokens[span.first as usize + i] = (s, i);
                let seen = self.seen(span, i);
                total += self.kv_heads * chunks(&seen).len();
            }
        }
        let mine = job.worker.share(total);
        for (row, &(s, i)) in tokens[..job.step.tokens].iter().enumerate() {
            let span = &job.step.batch.spans[s];
            let chunks = chunks(&self.seen(span, i));
            for head in 0..self.kv_heads {
                for chunk in chunks.clone() {
                    if mine.contains(&first_unit) {
                        self.one(job, span, i, row, head * group..(head + 1) * group, chunk);
                    }
                    first_unit += 1;
                }
            }
        }
    }

    /// One chunk for the query heads of one key head.
    fn one(
        &self,
        job: &Job<'_>,
        span: &Span,
        i: usize,
        row: usize,
        heads: Range<usize>,
        chunk: usize,
    ) {
        let cache = &job.step.caches[self.cache];
        let mut queries = [Query { q: std::ptr::null(), first: 0, end: 0 }; QUERIES];
        let (table, head) = (job.table(span, cache), heads.start / heads.len());
        let mut from = heads.start;
        while from < heads.end {
            let count = QUERIES.min(heads.end - from);
            for (n, q) in queries[..count].iter_mut().enumerate() {
                *q = self.query(job, span, i, from + n);
            }
            let queries = &queries[..count];
            let unit = Unit { rule: self.rule, cache, table, head, queries };
            let to = |n: usize| self.partial_at(job, row, from + n, chunk);
            // SAFETY: queries are whole rows; each partial result has one unit; scratch is used
            // here only.
            unsafe { partial(job.step.isa, &unit, chunk, &mut job.scratch().attention, to) };
            from += count;
        }
    }

    /// Many tokens: blocks of them by key heads, taken as workers come free.
    fn many(&self, job: &Job<'_>) {
        let units = job.step.queries.len() * self.kv_heads;
        let counter = &job.step.counters[self.counter];
        loop {
            let unit = counter.fetch_add(1, Ordering::Relaxed);
            if unit >= units {
                return;
            }
            // The last blocks of a sequence see most keys: they go first.
            let block = job.step.queries.len() - 1 - unit / self.kv_heads;
            self.block(job, block, unit % self.kv_heads);
        }
    }

    /// All chunks of a block of tokens for the query heads of key head `head`.
    fn block(&self, job: &Job<'_>, block: usize, head: usize) {
        let block = job.step.queries[block];
        let span = &job.step.batch.spans[block.span as usize];
        let cache = &job.step.caches[self.cache];
        let group = self.heads / self.kv_heads;
        let mut queries = [Query { q: std::ptr::null(), first: 0, end: 0 }; QUERIES];
        let mut rows = [(0, 0); QUERIES];
        let table = job.table(span, cache);
        let all = block.len as usize * group;
        debug_assert!(block.len <= QUERY_TOKENS);
        let mut from = 0;
        while from < all {
            let count = QUERIES.min(all - from);
            for n in 0..count {
                let (i, h) = ((from + n) / group, head * group + (from + n) % group);
                let i = block.first as usize + i;
                queries[n] = self.query(job, span, i, h);
                rows[n] = (span.first as usize + i, h);
            }
            let unit = Unit { rule: self.rule, cache, table, head, queries: &queries[..count] };
            let out = |n: usize| {
                let (row, h) = rows[n];
                let out = Cols { start: h * self.v_dim, cols: self.v_dim, ..self.out };
                // SAFETY: this head of this row belongs to this unit.
                unsafe { job.write(out, row) }.as_mut_ptr()
            };
            let sink = |n: usize| self.sink(rows[n].1);
            // SAFETY: queries are whole rows; scratch is used here only.
            unsafe { whole(job.step.isa, &unit, sink, &mut job.scratch().attention, out) };
            from += count;
        }
    }
}

/// Chunks that hold some of the keys.
fn chunks(seen: &Range<usize>) -> Range<usize> {
    seen.start / CHUNK..seen.end.div_ceil(CHUNK)
}

impl Kernel for Attend {
    fn run(&self, job: &Job<'_>) {
        if job.step.tokens <= NARROW { self.few(job) } else { self.many(job) }
    }
}

/// Joins the partial results that [`Attend`] leaves with few tokens.
#[derive(Debug)]
pub(crate) struct Merge(pub Attend);

impl Kernel for Merge {
    fn run(&self, job: &Job<'_>) {
        let a = &self.0;
        for row in job.rows(RowKind::Tokens) {
            let holds = |s: &&Span| (s.first + s.len) as usize > row;
            let Some(span) = job.step.batch.spans.iter().find(holds) else { continue };
            let chunks = chunks(&a.seen(span, row - span.first as usize));
            for head in 0..a.heads {
                let view = Cols { start: head * a.v_dim, cols: a.v_dim, ..a.out };
                let step = a.step(job);
                // SAFETY: by rows; the partial results of a head lie one after another, written
                // before the last barrier; scratch is used here only.
                unsafe {
                    let first = a.partial_at(job, row, head, chunks.start);
                    let parts = std::slice::from_raw_parts(first, step * chunks.len());
                    let out = job.write(view, row);
                    let acc = &mut job.scratch().row;
                    merge_partials(job.step.isa, parts, step, a.sink(head), acc, out);
                }
            }
        }
    }
}
