//! `bench --limits`: what this machine can do at most, without a model.

use std::io::Write;

use serde_json::json;

use super::args::Bench;
use crate::devices::{self, Arithmetic, Level};
use crate::failure::{Failure, size};

/// One printed line.
struct Row {
    threads: usize,
    what: String,
    /// What it was measured with.
    with: String,
    unit: &'static str,
    /// In `unit`; none where it could not be told apart.
    rate: Option<(f64, f64)>,
}

/// Measures and prints, for one thread and for all.
pub fn print(args: &Bench) -> Result<(), Failure> {
    let all = devices::threads(&args.machine);
    let mut out = std::io::stdout().lock();
    if !args.json {
        let caches = devices::caches();
        let (l2, l3) = (size(caches.l2_bytes as u64), size(caches.l3_bytes as u64));
        writeln!(out, "caches: L2 {l2} a core, L3 {l3} in all\n").map_err(Failure::output)?;
        writeln!(out, "threads  limit          best   median  unit    measured with")
            .map_err(Failure::output)?;
    }
    for threads in if all == 1 { vec![1] } else { vec![1, all] } {
        for row in measure(threads) {
            writeln!(out, "{}", if args.json { json(&row) } else { text(&row) })
                .map_err(Failure::output)?;
        }
    }
    Ok(())
}

fn measure(threads: usize) -> impl Iterator<Item = Row> {
    let reads = Level::ALL.into_iter().rev().map(move |level| {
        let limit = devices::read_limit(threads, level);
        let with = match limit {
            Some(limit) => format!("{} read in turn", size(limit.bytes as u64)),
            None => "no room to tell it apart".to_owned(),
        };
        let rate = limit.map(|l| (l.rate.best / 1e9, l.rate.median / 1e9));
        Row { threads, what: format!("{} read", level.name()), with, unit: "GB/s", rate }
    });
    let rates = Arithmetic::ALL.into_iter().map(move |arithmetic| {
        let limit = devices::op_limit(threads, arithmetic);
        let rate = Some((limit.rate.best / 1e12, limit.rate.median / 1e12));
        let (what, with) = (arithmetic.name().to_owned(), limit.instruction.to_owned());
        Row { threads, what, with, unit: "Top/s", rate }
    });
    reads.chain(rates)
}

fn text(row: &Row) -> String {
    let figure = |value: Option<f64>| value.map_or("–".to_owned(), |v| format!("{v:.2}"));
    let Row { threads, what, with, unit, rate } = row;
    let (best, median) = (figure(rate.map(|r| r.0)), figure(rate.map(|r| r.1)));
    format!("{threads:>7}  {what:<10} {best:>8} {median:>8}  {unit:<6}  {with}")
}

fn json(row: &Row) -> String {
    json!({
        "limit": row.what,
        "threads": row.threads,
        "unit": row.unit,
        "best": row.rate.map(|r| r.0),
        "median": row.rate.map(|r| r.1),
        "with": row.with,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_in_both_forms() {
        let what = || "L3 read".to_owned();
        let some = Row {
            threads: 2,
            what: what(),
            with: "16 MiB read in turn".into(),
            unit: "GB/s",
            rate: Some((101.26, 99.0)),
        };
        assert_eq!(
            text(&some),
            "      2  L3 read      101.26    99.00  GB/s    16 MiB read in turn"
        );
        let none = Row { rate: None, what: what(), with: String::new(), ..some };
        assert!(text(&none).contains(" – "), "{}", text(&none));
        assert!(json(&none).contains(r#""best":null"#));
    }
}
