//! The page of `bench serve`: figures and plots in one file.

use tokenmill_loadgen::{Kind, Run, Spread, Summary, TurnFigures, gaps, normalised};

use super::plot::{self, Bar, Curve, Group, Span};

/// Points of a curve: enough for its shape, few enough for a page.
const POINTS: usize = 200;
/// Sessions that have a row of their own.
const SESSIONS: usize = 64;

/// The page.
pub fn page(of_what: &str, table: &str, summary: &Summary, run: &Run) -> String {
    let of_what = plot::escape(of_what);
    let mut body = format!("<p>{of_what}</p>\n<pre>{}</pre>\n", plot::escape(table));
    for (name, spread) in summary.spreads() {
        body += &plot::bars(&format!("{name}, ms"), "", None, &[percentiles(spread)]);
    }
    let mut gaps = gaps(run);
    let cumulative = Curve { name: "gaps that are shorter".into(), points: cumulative(&mut gaps) };
    body += &plot::curves("Gaps between pieces of text (ITL)", "ms", "%", &[cumulative]);
    body += &latency_a_token(run);
    if summary.turns.len() > 1 {
        body += &by_turn(summary);
    }
    let (tokens, running) = timeline(run);
    let curve = |name: &str, points| [Curve { name: name.into(), points }];
    body += &plot::curves("Output", "s", "tok/s", &curve("tokens a second", tokens));
    body += &plot::curves("Requests", "s", "", &curve("requests in flight", running));
    body += &rows(run);
    plot::page("tokenmill bench serve", &body)
}

fn latency_a_token(run: &Run) -> String {
    let points = cumulative(&mut normalised(run));
    let faster = Curve { name: "requests that are faster".into(), points };
    let title = "Normalised latency: latency ÷ tokens of the answer";
    plot::curves(title, "ms a token", "%", &[faster])
}

/// TTFT and what was cached, over the turns of sessions.
fn by_turn(summary: &Summary) -> String {
    let curve = |name: &str, value: fn(&TurnFigures) -> Option<f64>| Curve {
        name: name.to_owned(),
        points: summary
            .turns
            .iter()
            .filter_map(|turn| Some(((turn.turn + 1) as f64, value(turn)?)))
            .collect(),
    };
    let ttft = [curve("p50", |t| Some(1e3 * t.ttft.p50)), curve("p90", |t| Some(1e3 * t.ttft.p90))];
    let mut plots = plot::curves("TTFT by turn", "turn", "ms", &ttft);
    let cached = curve("of the prompts' tokens", |t| t.cached.map(|part| 100.0 * part));
    if !cached.points.is_empty() {
        plots += &plot::curves("Cached by turn", "turn", "%", &[cached]);
    }
    plots
}

/// The requests of each session over time.
fn rows(run: &Run) -> String {
    let kinds = Kind::ALL.into_iter().filter(|k| run.records.iter().any(|r| r.kind == *k));
    let kinds: Vec<Kind> = kinds.collect();
    let shown = run.sessions.min(SESSIONS);
    let spans: Vec<Span> = run
        .records
        .iter()
        .filter(|record| record.session < shown)
        .map(|record| Span {
            row: record.session,
            series: kinds.iter().position(|k| *k == record.kind).unwrap_or(0),
            from: record.start_s,
            to: record.end_s,
        })
        .collect();
    let names: Vec<&str> = kinds.iter().map(|k| k.name()).collect();
    let title = match run.sessions > shown {
        true => format!("Requests of the first {shown} sessions, s"),
        false => "Requests of each session, s".to_owned(),
    };
    plot::rows(&title, shown, &names, &spans)
}

fn percentiles(spread: Spread) -> Group {
    let Spread { mean, p50, p90, p95, p99, max } = spread;
    let named =
        [("mean", mean), ("p50", p50), ("p90", p90), ("p95", p95), ("p99", p99), ("max", max)];
    let bar = |(name, seconds): (&str, f64)| Bar {
        series: name.to_owned(),
        value: 1e3 * seconds,
        label: format!("{:.2} ms", 1e3 * seconds),
    };
    Group { name: String::new(), bars: named.into_iter().map(bar).collect() }
}

/// Of a curve, in order of x.
type Points = Vec<(f64, f64)>;

/// Milliseconds, and the per cent of values that are at most that.
fn cumulative(values: &mut [f64]) -> Points {
    values.sort_unstable_by(f64::total_cmp);
    let Some(last) = values.len().checked_sub(1) else { return Vec::new() };
    let point = |i: usize| {
        let at = i * last / POINTS;
        (1e3 * values[at], 100.0 * (at + 1) as f64 / values.len() as f64)
    };
    let mut points = vec![(0.0, 0.0)];
    points.extend((0..=POINTS).map(point));
    points.dedup();
    points
}

/// Tokens a second and requests in flight over time, in equal slices of the run.
fn timeline(run: &Run) -> (Points, Points) {
    let slice_s = (run.wall_s / POINTS as f64).max(0.05);
    let slices = (run.wall_s / slice_s).ceil().max(1.0) as usize;
    let slice_of = |at_s: f64| ((at_s / slice_s) as usize).min(slices - 1);
    let mut tokens = vec![0.0; slices];
    let mut running = vec![0.0; slices];
    for record in &run.records {
        for count in &mut running[slice_of(record.start_s)..=slice_of(record.end_s)] {
            *count += 1.0;
        }
        let Ok(outcome) = &record.outcome else { continue };
        // A piece may be several tokens.
        let each = outcome.completion_tokens as f64 / outcome.events_s.len().max(1) as f64;
        for &at in &outcome.events_s {
            tokens[slice_of(at)] += each / slice_s;
        }
    }
    let at = |i: usize| (i as f64 + 0.5) * slice_s;
    let points = |values: Vec<f64>| values.into_iter().enumerate().map(|(i, v)| (at(i), v));
    (points(tokens).collect(), points(running).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenmill_loadgen::{Outcome, Record};

    fn run() -> Run {
        let record = |turn, start_s: f64, end_s: f64| Record {
            session: turn,
            turn,
            kind: Kind::Main,
            start_s,
            end_s,
            max_tokens: 4,
            outcome: Ok(Outcome {
                events_s: vec![start_s + 0.1, end_s],
                prompt_tokens: None,
                cached_tokens: None,
                completion_tokens: 4,
            }),
        };
        let records = vec![record(0, 0.0, 10.0), record(1, 5.0, 19.9)];
        Run { model: "m".into(), wall_s: 20.0, sessions: 2, records }
    }

    #[test]
    fn the_timeline_keeps_every_token_and_request() {
        let (tokens, running) = timeline(&run());
        assert_eq!(tokens.len(), 200);
        let sum: f64 = tokens.iter().map(|p| p.1 * 0.1).sum();
        assert!((sum - 8.0).abs() < 1e-9, "{sum}");
        let at = |s: f64| running[(s / 0.1) as usize].1;
        assert_eq!((at(1.0), at(7.0), at(15.0)), (1.0, 2.0, 1.0));
    }

    #[test]
    fn the_share_of_gaps_rises_to_all() {
        let mut gaps: Vec<f64> = (1..=1000).rev().map(|ms| f64::from(ms) / 1e3).collect();
        let points = cumulative(&mut gaps);
        assert_eq!((points[0], points[points.len() - 1]), ((0.0, 0.0), (1000.0, 100.0)));
        assert!(points.windows(2).all(|p| p[0].0 <= p[1].0 && p[0].1 <= p[1].1));
        assert!(points.iter().skip(1).all(|p| (p.0 / 10.0 - p.1).abs() < 0.11), "{points:?}");
        assert_eq!(cumulative(&mut []), []);
    }

    #[test]
    fn a_page_stands_alone() {
        let run = run();
        let page = page("<m>", "tok/s", &Summary::of(&run), &run);
        assert!(page.contains("&lt;m&gt;") && page.matches("<svg").count() == 10);
        assert!(!page.contains("NaN") && !page.contains("<script") && !page.contains("src="));
    }
}
