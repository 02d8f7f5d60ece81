//! A plan as a page of text.

use std::fmt::Write as _;

use super::choice::{Plan, Verdict};
use super::machine::Machine;

/// Bytes for people: `4.6 GiB`.
pub fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

/// A rate to two digits.
pub fn rate(value: f64) -> String {
    match value {
        v if !v.is_finite() => "–".to_owned(),
        v if v >= 100.0 => {
            let step = 10f64.powi(v.log10().floor() as i32 - 1);
            format!("{:.0}", (v / step).round() * step)
        }
        v if v >= 10.0 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}

/// A time to two digits.
pub fn seconds(value: f64) -> String {
    match value {
        v if v < 0.001 => "under 1 ms".to_owned(),
        v if v < 1.0 => format!("{} ms", rate(v * 1000.0)),
        v if v < 120.0 => format!("{} s", rate(v)),
        v => format!("{} min", rate(v / 60.0)),
    }
}

/// The page; `figures` are more lines for it, with their names.
pub fn page(machine: &Machine, plan: &Plan, figures: &[(String, String)]) -> String {
    let mut out = String::new();
    let mut line = |name: &str, text: String| {
        let _ = writeln!(out, "{name:<13} {text}");
    };
    line("machine", of_machine(machine));
    line("need", of_need(plan));
    let Some(c) = &plan.chosen else {
        line("answer", "no".to_owned());
        lists(&mut out, plan);
        return out;
    };
    let verdict = match plan.verdict {
        Verdict::Yes => format!("{}, {}", c.model, c.role.name()),
        Verdict::Instead => format!("no; instead {}, {}", c.model, c.role.name()),
        Verdict::Pull => {
            let no = if plan.need.named.is_empty() { "" } else { "no; instead " };
            format!("{no}{} ({} to fetch), {}", c.model, size(c.files), c.role.name())
        }
        Verdict::No => "no".to_owned(),
    };
    line("answer", verdict);
    for command in &c.commands {
        line("run", command.clone());
    }
    for how in &c.strategy {
        line("how", how.clone());
    }
    let m = &c.memory;
    line(
        "memory",
        format!(
            "{} of {}: weights {}, cache {}, buffers {}, process {}",
            size(m.needed),
            size(m.available),
            size(m.weights),
            size(m.cache),
            size(m.buffers),
            size(m.process)
        ),
    );
    if c.memory.cache > 0 {
        let (n, token) = (c.full_streams, size(m.token));
        line("cache", format!("{n} x {} tokens as {}, {token} a token", c.context, c.kv));
    }
    let s = &c.speed;
    let first = seconds(s.first_s);
    line("prompt", format!("{} tok/s; {} tokens in {first}", rate(s.prompt_tok_s), s.prompt));
    if let (Some(one), Some(all)) = (s.decode_tok_s, s.all_tok_s) {
        let depth = s.depth;
        line(
            "answers",
            match s.streams {
                1 => format!("{} tok/s behind {depth} tokens", rate(one)),
                n => format!(
                    "{} tok/s each of {n}, {} in all, behind {depth} tokens",
                    rate(one),
                    rate(all)
                ),
            },
        );
    }
    line("shares", s.source.clone());
    for (name, text) in figures {
        line(name, text.clone());
    }
    lists(&mut out, plan);
    out
}

fn of_machine(machine: &Machine) -> String {
    let ceilings = machine.ceilings();
    let gpus: Vec<String> =
        machine.gpus.iter().map(|g| format!(" · {} {}", g.name, size(g.memory))).collect();
    format!(
        "{}: {} cores, {}, {} for models · {:.0} GB/s, {:.2} Top/s int8{}{}",
        machine.name,
        machine.cores,
        format!("{:?}", machine.instructions).to_lowercase(),
        size(machine.room()),
        ceilings.read / 1e9,
        ceilings.ops[0] / 1e12,
        if ceilings.assumed { " (assumed)" } else { "" },
        gpus.concat()
    )
}

fn of_need(plan: &Plan) -> String {
    let need = &plan.need;
    let mut text = format!("{}, {} at once", need.task.row().name, need.users);
    if let Some(context) = need.ctx {
        let _ = write!(text, ", context {context}");
    }
    if !need.named.is_empty() {
        let _ = write!(text, ", of {}", need.named.join(", "));
    }
    text
}

/// Reasons, alternatives, warnings, refusals.
fn lists(out: &mut String, plan: &Plan) {
    let mut list = |name: &str, lines: Vec<String>| {
        for (at, text) in lines.into_iter().enumerate() {
            let _ = writeln!(out, "{:<13} {text}", if at == 0 { name } else { "" });
        }
    };
    list("why", plan.reasons.clone());
    let other = |a: &super::Alternative| {
        let command = a.command.as_ref().map(|c| format!(" · {c}")).unwrap_or_default();
        format!("{} ({}): {}{command}", a.what, a.cost, a.why_not)
    };
    list("else", plan.alternatives.iter().map(other).collect());
    // (Why a named one is refused stands above.)
    let others = plan.refused.iter().filter(|r| !plan.need.named.contains(&r.model));
    list("not", others.map(|r| format!("{}: {}", r.model, r.why)).collect());
    list("warning", plan.warnings.clone());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_two_digits() {
        for (value, expect) in
            [(0.04, "0.0"), (8.54, "8.5"), (12.6, "13"), (123.0, "120"), (1251.0, "1300")]
        {
            assert_eq!(rate(value), expect);
        }
        for (value, expect) in
            [(1e-5, "under 1 ms"), (0.25, "250 ms"), (42.0, "42 s"), (300.0, "5.0 min")]
        {
            assert_eq!(seconds(value), expect);
        }
        assert_eq!((size(999), size(5 << 30)), ("999 B".to_owned(), "5.0 GiB".to_owned()));
    }
}
