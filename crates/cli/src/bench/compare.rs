//! Our figures beside those of peers: one table, one plot.

use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};

use super::line::Line;
use super::plot::{self, Bar, Group};
use crate::failure::{Failure, tell};

/// Figures of one engine.
#[derive(Debug)]
pub struct Peer {
    /// Its name in the table.
    pub name: String,
    /// What it measured.
    pub lines: Vec<Line>,
}

/// Our lines, and who is compared.
#[derive(Debug)]
pub struct Table {
    ours: Vec<Line>,
    peers: Vec<Peer>,
}

/// Reads `FILE` or `NAME=FILE`.
pub fn read(argument: &str) -> Result<Peer, Failure> {
    let (name, file) = match argument.split_once('=') {
        Some((name, file)) if !Path::new(argument).exists() => (Some(name), file),
        _ => (None, argument),
    };
    let cannot = |why: String| Failure::new(format!("cannot compare with {file}"), why);
    let text = std::fs::read_to_string(file).map_err(|e| cannot(e.to_string()))?;
    let lines = parse(&text).map_err(cannot)?;
    let engine = lines.first().map(|line| line.engine.clone());
    let name = name.map(str::to_owned).or(engine);
    let name = name.ok_or_else(|| cannot("it has no figures".to_owned()))?;
    Ok(Peer { name, lines })
}

/// One JSON array, or objects one a line.
fn parse(text: &str) -> Result<Vec<Line>, String> {
    if let Ok(Value::Array(all)) = serde_json::from_str(text) {
        return all.iter().map(Line::parse).collect();
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    lines
        .map(|(i, line)| {
            let value = serde_json::from_str(line).map_err(|e| e.to_string());
            let parsed = value.and_then(|value| Line::parse(&value));
            parsed.map_err(|e| format!("line {}: {e}", i + 1))
        })
        .collect()
}

/// Refuses a file whose ending says no kind of picture.
pub fn check_plot(file: &Path) -> Result<(), Failure> {
    match file.extension().and_then(|e| e.to_str()) {
        Some("svg" | "html") => Ok(()),
        _ => Err(Failure::new(
            format!("cannot draw {}", file.display()),
            "the name ends neither in .svg nor in .html",
        )),
    }
}

impl Table {
    /// Finds for each of our lines the peers' of the same test.
    pub fn new(ours: Vec<Line>, mut peers: Vec<Peer>) -> Result<Table, Failure> {
        let Some(first) = ours.first() else {
            return Err(Failure::new("nothing to compare", "no test was run"));
        };
        for peer in &mut peers {
            let mut stems: Vec<&str> = peer.lines.iter().map(Line::model_stem).collect();
            stems.sort_unstable();
            stems.dedup();
            if stems.len() > 1 {
                let stem = first.model_stem();
                if !stems.contains(&stem) {
                    let why = format!("it measured {}, we {stem}", stems.join(", "));
                    return Err(Failure::new(format!("cannot compare with {}", peer.name), why));
                }
                peer.lines.retain(|line| line.model_stem() == stem);
            }
            let threads = peer.lines.first().map_or(0, |line| line.threads);
            if threads != 0 && first.threads != 0 && threads != first.threads {
                tell!("note: {} ran {threads} threads, we {}", peer.name, first.threads);
            }
        }
        Ok(Table { ours, peers })
    }

    /// Prints the table, or one JSON object a line.
    pub fn print(&self, as_json: bool) -> Result<(), Failure> {
        let text = if as_json { self.json() } else { self.text() };
        std::io::stdout().write_all(text.as_bytes()).map_err(Failure::output)
    }

    fn text(&self) -> String {
        let header = self.header().join("\n");
        let mut names = String::new();
        for peer in &self.peers {
            names += &format!(" {:>16}  ratio", peer.name);
        }
        let mut text = format!(
            "{header}\n{:<14}     tok/s (min … max)           GB/s  % read     Top/s   % ops{names}\n",
            "test"
        );
        for line in &self.ours {
            let [median, min, max] = line.tok_s;
            text += &format!(
                "{:<14} {median:>9.1} {:<20}",
                line.test,
                format!("({min:.1} … {max:.1})")
            );
            text += &match &line.work {
                Some(w) => format!(
                    " {:>7.1} {:>7} {:>9.3} {:>7}",
                    w.gb_s,
                    percent(w.of_reads()),
                    w.tops,
                    percent(Some(w.of_ops())),
                ),
                None => format!(" {:>7} {:>7} {:>9} {:>7}", "–", "–", "–", "–"),
            };
            for peer in &self.peers {
                text += &match peer.rate(&line.test) {
                    Some(rate) => format!(" {rate:>16.1} {:>6.2}", median / rate),
                    None => format!(" {:>16} {:>6}", "–", "–"),
                };
            }
            text += "\n";
        }
        text
    }

    fn json(&self) -> String {
        let mut text = String::new();
        for line in &self.ours {
            let mut object = line.json();
            let peers = self.peers.iter().filter_map(|peer| {
                let rate = peer.rate(&line.test)?;
                let ratio = line.tok_s[0] / rate;
                Some(json!({"engine": peer.name, "tok_s": rate, "ratio": ratio}))
            });
            let peers: Vec<Value> = peers.collect();
            if !peers.is_empty() {
                object.insert("peers".to_owned(), peers.into());
            }
            text += &format!("{}\n", Value::Object(object));
        }
        text
    }

    /// What was measured, and the limits.
    fn header(&self) -> Vec<String> {
        let Some(first) = self.ours.first() else { return Vec::new() };
        let model = first.model_stem();
        let mut lines = vec![format!("{model} · {} · {} threads", first.format, first.threads)];
        if let Some(work) = &first.work {
            // As measured beside each line.
            let works = self.ours.iter().filter_map(|line| line.work.as_ref());
            let reads: Vec<f64> = works.filter_map(|work| work.limit_gb_s).collect();
            let least = reads.iter().copied().fold(f64::INFINITY, f64::min);
            let most = reads.iter().copied().fold(0.0, f64::max);
            let read = match reads.len() {
                0 => "unknown".to_owned(),
                1 => format!("{most:.1} GB/s"),
                _ => format!("{least:.1} to {most:.1} GB/s"),
            };
            let (ops, arithmetic) = (work.limit_tops, &work.arithmetic);
            lines.push(format!("limits: DRAM read {read}, {arithmetic} {ops:.2} Top/s"));
        }
        lines
    }

    /// Draws every figure as a part of the limit that binds: a picture, or a page with the table.
    pub fn plot(&self, file: &Path) -> Result<(), Failure> {
        let cannot = |why: String| Failure::new(format!("cannot draw {}", file.display()), why);
        let svg = plot::bars(
            "tok/s, as a part of this machine's limit",
            " %",
            Some(100.0),
            &self.groups(),
        );
        let text = match file.extension().and_then(|e| e.to_str()) {
            Some("svg") => svg,
            Some("html") => {
                let body = format!("<pre>{}</pre>\n{svg}", plot::escape(&self.text()));
                plot::page(&format!("tokenmill bench: {}", self.ours[0].model_stem()), &body)
            }
            _ => return check_plot(file),
        };
        std::fs::write(file, text).map_err(|e| cannot(e.to_string()))
    }

    fn groups(&self) -> Vec<Group> {
        let of = |line: &Line| {
            // Without known work there is no limit: the bars of a test share the largest rate.
            let rates = self.peers.iter().filter_map(|peer| peer.rate(&line.test));
            let most = rates.fold(line.tok_s[0], f64::max);
            let limit = line.work.as_ref().map_or(most, |w| line.tok_s[0] / w.of_limit());
            let bar = |name: &str, rate: f64| Bar {
                series: name.to_owned(),
                value: 100.0 * rate / limit,
                label: format!("{rate:.1} tok/s, {:.0} %", 100.0 * rate / limit),
            };
            let mut bars = vec![bar(&line.engine, line.tok_s[0])];
            for peer in &self.peers {
                bars.extend(peer.rate(&line.test).map(|rate| bar(&peer.name, rate)));
            }
            Group { name: line.test.clone(), bars }
        };
        self.ours.iter().map(of).collect()
    }
}

impl Peer {
    /// Its median of a test, tokens a second. The last counts where a test was run twice.
    fn rate(&self, test: &str) -> Option<f64> {
        let of_test = self.lines.iter().rev().find(|line| line.test == test);
        of_test.map(|line| line.tok_s[0]).filter(|rate| *rate > 0.0)
    }
}

fn percent(part: Option<f64>) -> String {
    part.map_or("–".to_owned(), |p| format!("{:.0} %", 100.0 * p))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::line::Work;

    fn ours() -> Vec<Line> {
        let line = |test: &str, rate: f64, gb_s: f64, tops: f64| Line {
            engine: "tokenmill".into(),
            model: "x/m.gguf".into(),
            format: "q4_0".into(),
            threads: 2,
            test: test.into(),
            tok_s: [rate, rate, rate],
            work: Some(Work {
                gb_s,
                tops,
                limit_gb_s: Some(50.0),
                limit_tops: 2.0,
                arithmetic: "int8".into(),
                barriers: None,
            }),
        };
        vec![line("pp512", 1000.0, 2.0, 1.0), line("tg128", 300.0, 40.0, 0.1)]
    }

    const PEER: &str = r#"[
        {"model_filename": "y/m.gguf", "n_threads": 2, "n_prompt": 512, "n_gen": 0, "avg_ts": 250.0},
        {"model_filename": "y/other.gguf", "n_threads": 2, "n_prompt": 512, "n_gen": 0, "avg_ts": 9.0}
    ]"#;

    #[test]
    fn peers_are_matched_by_test_and_model() {
        let peer = Peer { name: "llama.cpp".into(), lines: parse(PEER).unwrap() };
        let table = Table::new(ours(), vec![peer]).unwrap();
        let text = table.text();
        let row = |test: &str| text.lines().find(|l| l.starts_with(test)).unwrap().to_owned();
        assert!(row("pp512").ends_with("250.0   4.00"), "{text}");
        assert!(row("pp512").contains(" 4 %") && row("pp512").contains(" 50 %"), "{text}");
        assert!(row("tg128").ends_with("–      –"), "{text}");
        let json: Value = serde_json::from_str(table.json().lines().next().unwrap()).unwrap();
        assert_eq!(json["peers"][0]["ratio"], 4.0);
        // The bars: half of the limit, and the peer a quarter of that.
        let groups = table.groups();
        let values: Vec<f64> = groups[0].bars.iter().map(|b| b.value).collect();
        assert_eq!(values, [50.0, 12.5]);
        assert_eq!(groups[1].bars.len(), 1);
    }

    #[test]
    fn files_that_cannot_be_compared() {
        let none = || Peer { name: "p".into(), lines: parse(PEER).unwrap() };
        let mut other = ours();
        other.iter_mut().for_each(|l| l.model = "z.gguf".into());
        let told = Table::new(other, vec![none()]).unwrap_err().to_string();
        assert!(told.contains("measured m, other, we z"), "{told}");
        assert!(parse("{\"avg_ts\": 1}\n").unwrap_err().starts_with("line 1:"));
        assert!(parse("no json").is_err());
        assert!(read("/nowhere.json").is_err());
    }

    #[test]
    fn lines_and_arrays_read_the_same() {
        let Ok(Value::Array(all)) = serde_json::from_str::<Value>(PEER) else { panic!() };
        let lines: Vec<String> = all.iter().map(Value::to_string).collect();
        assert_eq!(parse(&lines.join("\n\n")), parse(PEER));
    }
}
