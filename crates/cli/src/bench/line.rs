//! One measured test, in the JSON form of this command and in llama-bench's.

use std::path::Path;

use serde_json::{Map, Value, json};

/// A test of one engine on one model.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Who was measured.
    pub engine: String,
    /// The model, as given.
    pub model: String,
    /// How most of its weights are stored.
    pub format: String,
    /// Threads; 0 where it is not said.
    pub threads: u64,
    /// Such as `pp512`, `tg128`, `tg128@256`, `tg128 x16`.
    pub test: String,
    /// Tokens a second: median, least, most.
    pub tok_s: [f64; 3],
    /// What the work came to; peers do not say.
    pub work: Option<Work>,
}

/// Reads and operations of a test, beside the machine's.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    /// Bytes read a second.
    pub gb_s: f64,
    /// Operations a second.
    pub tops: f64,
    /// The most the machine reads, 10⁹ bytes a second; none where it was not measured.
    pub limit_gb_s: Option<f64>,
    /// The most operations of this arithmetic, 10¹² a second.
    pub limit_tops: f64,
    /// The arithmetic of the limit.
    pub arithmetic: String,
    /// How often workers wait for each other in the largest step; none where it is not known.
    pub barriers: Option<u64>,
}

impl Work {
    /// Part of the read limit used.
    pub fn of_reads(&self) -> Option<f64> {
        self.limit_gb_s.map(|limit| self.gb_s / limit)
    }

    /// Part of the operation limit used.
    pub fn of_ops(&self) -> f64 {
        self.tops / self.limit_tops
    }

    /// Part of the limit that binds first.
    pub fn of_limit(&self) -> f64 {
        self.of_reads().unwrap_or(0.0).max(self.of_ops())
    }
}

impl Line {
    /// The model's file name without folder and ending: what models are matched by.
    pub fn model_stem(&self) -> &str {
        Path::new(&self.model).file_stem().and_then(|s| s.to_str()).unwrap_or(&self.model)
    }

    /// The line as this command prints it.
    pub fn json(&self) -> Map<String, Value> {
        let [median, min, max] = self.tok_s;
        let mut map = Map::new();
        let mut put = |name: &str, value: Value| map.insert(name.to_owned(), value);
        put("engine", json!(self.engine));
        put("model", json!(self.model));
        put("format", json!(self.format));
        put("threads", json!(self.threads));
        put("test", json!(self.test));
        put("tok_s", json!({"median": median, "min": min, "max": max}));
        if let Some(work) = &self.work {
            put("gb_s", json!(work.gb_s));
            put("tops", json!(work.tops));
            put("limit_gb_s", json!(work.limit_gb_s));
            put("limit_tops", json!(work.limit_tops));
            put("arithmetic", json!(work.arithmetic));
            put("barriers", json!(work.barriers));
        }
        map
    }

    /// Reads either form; the reason where it is neither.
    pub fn parse(value: &Value) -> Result<Line, String> {
        match value.get("test") {
            Some(_) => own(value),
            None => llama_bench(value),
        }
    }
}

fn text(value: &Value, name: &str) -> String {
    value.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn number(value: &Value, name: &str) -> Option<f64> {
    value.get(name)?.as_f64().filter(|n| n.is_finite())
}

fn count(value: &Value, name: &str) -> u64 {
    value.get(name).and_then(Value::as_u64).unwrap_or(0)
}

/// The form that [`Line::json`] writes.
fn own(value: &Value) -> Result<Line, String> {
    let rates = value.get("tok_s").ok_or("no \"tok_s\"")?;
    let median = number(rates, "median").ok_or("no \"tok_s\".\"median\"")?;
    let [min, max] = ["min", "max"].map(|name| number(rates, name).unwrap_or(median));
    let work = || {
        Some(Work {
            gb_s: number(value, "gb_s")?,
            tops: number(value, "tops")?,
            limit_gb_s: number(value, "limit_gb_s"),
            limit_tops: number(value, "limit_tops")?,
            arithmetic: text(value, "arithmetic"),
            barriers: value.get("barriers").and_then(Value::as_u64),
        })
    };
    let engine = match text(value, "engine") {
        name if name.is_empty() => "tokenmill".to_owned(),
        name => name,
    };
    Ok(Line {
        engine,
        model: text(value, "model"),
        format: text(value, "format"),
        threads: count(value, "threads"),
        test: text(value, "test"),
        tok_s: [median, min, max],
        work: work(),
    })
}

/// An object of `llama-bench -o json` or `-o jsonl`. `n_seqs` is not llama-bench's own: sequences
/// decoded at once, by tools that write its form.
fn llama_bench(value: &Value) -> Result<Line, String> {
    let average = number(value, "avg_ts").ok_or("neither \"test\" nor \"avg_ts\"")?;
    let samples = value.get("samples_ts").and_then(Value::as_array);
    let mut samples: Vec<f64> = samples.into_iter().flatten().filter_map(Value::as_f64).collect();
    samples.sort_unstable_by(f64::total_cmp);
    let tok_s = match (samples.get(samples.len() / 2), samples.first(), samples.last()) {
        (Some(&median), Some(&min), Some(&max)) => [median, min, max],
        _ => [average; 3],
    };
    let [prompt, generated] = ["n_prompt", "n_gen"].map(|name| count(value, name));
    let mut test = match (prompt, generated) {
        (0, 0) => return Err("neither \"n_prompt\" nor \"n_gen\"".to_owned()),
        (p, 0) => format!("pp{p}"),
        (0, g) => format!("tg{g}"),
        (p, g) => format!("pp{p}+tg{g}"),
    };
    let [depth, sequences] = ["n_depth", "n_seqs"].map(|name| count(value, name));
    if depth > 0 {
        test += &format!("@{depth}");
    }
    if sequences > 1 {
        test += &format!(" x{sequences}");
    }
    let engine = match text(value, "engine") {
        name if name.is_empty() => "llama.cpp".to_owned(),
        name => name,
    };
    Ok(Line {
        engine,
        model: text(value, "model_filename"),
        format: text(value, "model_type"),
        threads: count(value, "n_threads"),
        test,
        tok_s,
        work: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_lines_come_back() {
        let work = Work {
            gb_s: 20.0,
            tops: 0.5,
            limit_gb_s: Some(40.0),
            limit_tops: 2.0,
            arithmetic: "int8".into(),
            barriers: Some(7),
        };
        assert_eq!((work.of_limit(), work.of_ops()), (0.5, 0.25));
        let line = Line {
            engine: "tokenmill".into(),
            model: "a/b.q4_0.gguf".into(),
            format: "q4_0".into(),
            threads: 2,
            test: "tg128 x16".into(),
            tok_s: [10.0, 9.0, 11.0],
            work: Some(work),
        };
        assert_eq!(Line::parse(&Value::Object(line.json())), Ok(line.clone()));
        assert_eq!(line.model_stem(), "b.q4_0");
    }

    #[test]
    fn llama_bench_lines() {
        let of = |value: Value| Line::parse(&value).map(|l| (l.test, l.tok_s));
        let line = |more: Value| {
            let mut all = json!({"model_filename": "m.gguf", "n_threads": 2, "avg_ts": 5.0});
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            of(all)
        };
        assert_eq!(line(json!({"n_prompt": 512, "n_gen": 0})), Ok(("pp512".into(), [5.0; 3])));
        assert_eq!(
            line(json!({"n_gen": 128, "n_depth": 256, "samples_ts": [4.0, 9.0, 6.0]})),
            Ok(("tg128@256".into(), [6.0, 4.0, 9.0]))
        );
        assert_eq!(line(json!({"n_gen": 8, "n_seqs": 16})).unwrap().0, "tg8 x16");
        assert_eq!(line(json!({"n_prompt": 8, "n_gen": 4})).unwrap().0, "pp8+tg4");
        for bad in [json!({}), json!({"avg_ts": 5.0}), json!({"test": "pp1"}), json!(3)] {
            assert!(of(bad.clone()).is_err(), "{bad}");
        }
    }
}
