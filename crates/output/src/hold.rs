//! The grammar that an answer holds: calls of offered tools alone, with arguments their schemas
//! allow. Written in Lark, with the marks as special tokens where the model has them.

mod behind;
mod either;
mod enforced;
mod input;
mod parts;
mod strict;
mod written;

use tokenmill_grammar::Constraint;

use crate::body::Body;
use crate::format::{Bare, Form, Marked, Section};
use crate::harmony;
use crate::{Format, Tool};

pub use enforced::enforceable;
use parts::{Run, Trigger, Writer, pattern, quoted};

/// Members that calls begin with.
const MEMBERS: &str = "name|parameters|arguments|type|id|function|tool_call_id";

/// Most tools of a grammar.
pub const MOST_HELD: usize = 512;

/// Most tools whose names in a mark tell calls from text; of more the mark alone begins a call, for
/// grammars have few intersections.
const FEW: usize = 3;

/// What calls an answer may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    /// Any number, between texts.
    Auto,
    /// One at least, and nothing else.
    Required,
}

/// What a request asks of calls.
pub struct Ask<'a> {
    /// The tools that may be called, each with a schema that is enforced whole.
    pub tools: &'a [Tool],
    /// Whether they must be.
    pub calls: Calls,
    /// More than one call.
    pub parallel: bool,
    /// The model reasons where it likes to, before required calls too.
    pub reasons: bool,
    /// The prompt has begun the reasoning.
    pub reasoning_begun: bool,
    /// The id of a text that is a special token of the model.
    pub special: &'a dyn Fn(&str) -> Option<u32>,
}

impl std::fmt::Debug for Ask<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ask").field("calls", &self.calls).finish_non_exhaustive()
    }
}

impl Format {
    /// What an answer must hold, to be compiled with the separators of templates' `tojson`
    /// (`", "` and `": "`); `None` where there is no grammar for the row's calls, or
    /// where these are more than [`MOST_HELD`]. Tools that cannot
    /// be called in it ([`Format::can_call`]) are left out.
    pub fn hold(&self, ask: &Ask<'_>) -> Option<Constraint> {
        let tools: Vec<Tool> =
            ask.tools.iter().filter(|tool| self.can_call(tool)).cloned().collect();
        if tools.is_empty() || tools.len() > MOST_HELD {
            return None;
        }
        let ask = Ask { tools: &tools, ..*ask };
        let mut lark = Writer::new(&ask);
        match &self.form {
            Form::Harmony => messages(&mut lark),
            Form::Marked(marked) => match ask.calls {
                Calls::Auto => auto(&mut lark, marked)?,
                Calls::Required => required(&mut lark, marked)?,
            },
        }
        lark.written()
    }
}

/// Reasoning, then calls.
fn required(lark: &mut Writer<'_>, marked: &Marked) -> Option<()> {
    let thought = thought(lark, marked);
    let calls = calls(lark, marked)?;
    lark.rule("start", &format!("{thought} gap {calls}"));
    Some(())
}

/// Reasoning before what is held.
fn thought(lark: &mut Writer<'_>, marked: &Marked) -> String {
    let (opens, closes) = marked.think;
    match opens.first() {
        Some(_) if lark.ask.reasoning_begun => lark.until("THOUGHT", closes),
        Some(open) if lark.ask.reasons => {
            let closed = lark.until("THOUGHT", closes);
            format!("(gap {} {closed})?", lark.mark(open))
        }
        _ => String::new(),
    }
}

/// Calls, one at least.
fn calls(lark: &mut Writer<'_>, marked: &Marked) -> Option<String> {
    // A section whose marks the model has as tokens is its own.
    let own = |s: &&Section| s.opens.iter().all(|mark| (lark.ask.special)(mark).is_some());
    let section = marked.sections.iter().find(own).or(marked.sections.first())?;
    let run = lark.run(section)?;
    let mark = match section.bare {
        Bare::Start(_) | Bare::List(_) => String::new(),
        _ => lark.mark(section.opens.first()?),
    };
    let sign = lark.mark(run.sign);
    let more = match (lark.ask.parallel && !run.repeats, section.next.first()) {
        (false, _) => String::new(),
        (true, Some(next)) => format!("({} {sign} run)*", lark.mark(&format!("{next} "))),
        (true, None) => format!("(gap {mark} gap {sign} run)*"),
    };
    lark.rule("run", &run.rest);
    Some(format!("{mark} gap {sign} run {more}"))
}

/// Text with calls in it.
fn auto(lark: &mut Writer<'_>, marked: &Marked) -> Option<()> {
    let mut triggers = Vec::new();
    for section in marked.sections {
        triggers.extend(of_section(lark, section)?);
    }
    let answer: Vec<&str> = marked.answer.iter().flat_map(|(a, b)| [*a, *b]).collect();
    lark.text_with_calls(&triggers, &answer);
    let (opens, closes) = marked.think;
    let bare = marked.sections.iter().find_map(|section| match section.bare {
        Bare::Start(sign) | Bare::List(sign) => Some((sign, section)),
        _ => None,
    });
    let start = match (opens.first(), bare) {
        (Some(_), _) if lark.ask.reasoning_begun => {
            let (closed, open) = (lark.until("THOUGHT", closes), lark.without("OPEN", closes));
            format!("{closed} said | {open}")
        }
        (Some(open), _) => {
            let (closed, unclosed) = (lark.until("THOUGHT", closes), lark.without("OPEN", closes));
            let first = format!("/\\s*({})/", alternatives(opens));
            let text = lark.first_text(&triggers, &answer, &first);
            let open = match (lark.ask.special)(open) {
                Some(_) => format!("gap {}", lark.mark(open)),
                None => first,
            };
            format!("{text} | {open} ({closed} said | {unclosed})")
        }
        (None, Some((sign, section))) => {
            let (first, calls) = bare_calls(lark, section, sign)?;
            let text = lark.first_text(&triggers, &answer, &first);
            lark.rule("REST", "ANY");
            format!("{text} | {calls} REST")
        }
        (None, None) => "said".to_owned(),
    };
    lark.rule("start", &start);
    Some(())
}

/// What begins calls of a section in text.
fn of_section(lark: &mut Writer<'_>, section: &'static Section) -> Option<Vec<Trigger>> {
    let Run { sign, rest, .. } = lark.run(section)?;
    let run = lark.numbered("run", &rest);
    let with = |sign, run: &str| {
        let run = run.to_owned();
        move |mark: &&str| Trigger { mark: (*mark).to_owned(), sign, run: run.clone() }
    };
    let mut triggers: Vec<Trigger> = section.opens.iter().map(with(sign, &run)).collect();
    match (section.bare, section.bodies.first()) {
        (Bare::Items, _) => triggers.extend(section.items.iter().map(with("", &run))),
        (Bare::Offered, Some(_)) if lark.ask.tools.len() > FEW => {
            let calls = lark.calls(section, "")?;
            let run = lark.numbered("run", &calls);
            triggers.extend(section.items.iter().map(with("", &run)));
        }
        (Bare::Offered, Some(Body::Tagged(tags))) => {
            for at in 0..lark.ask.tools.len() {
                let (head, rest) = lark.tagged(*tags, at)?;
                let run = lark.numbered("run", &rest);
                let mark = format!("{}{head}", section.items.first()?);
                triggers.push(Trigger { mark, sign: "", run });
            }
        }
        _ => {}
    }
    Some(triggers)
}

/// Calls that begin an answer without a mark: how text does not begin, and the calls.
fn bare_calls(
    lark: &mut Writer<'_>,
    section: &'static Section,
    sign: &str,
) -> Option<(String, String)> {
    let names: Vec<&str> = lark.ask.tools.iter().map(|tool| tool.name.as_str()).collect();
    let first = match sign {
        "{" => format!("/\\s*\\{{\\s*\"({MEMBERS})\"/"),
        _ => format!("/\\s*\\[\\s*({})\\(/", alternatives(&names)),
    };
    // A call's beginning is one text: no other may take a part of it.
    let calls = lark.calls(section, sign)?;
    lark.rule("bare", &calls);
    let more = match (lark.ask.parallel, section.next.first(), sign) {
        (true, Some(next), _) => format!("({} bare)*", quoted(&format!("{next} "))),
        (false, _, "[") => "\"]\"".to_owned(),
        (true, _, "[") => {
            let another = lark.calls(section, "")?;
            lark.rule("another", &another);
            "(\", \" another)* \"]\"".to_owned()
        }
        _ => String::new(),
    };
    Some((first, format!("bare {more}")))
}

fn alternatives(marks: &[&str]) -> String {
    marks.iter().map(|mark| pattern(mark)).collect::<Vec<_>>().join("|")
}

/// Messages of harmony.
fn messages(lark: &mut Writer<'_>) {
    call_messages(lark);
    let before = analysis(lark, true);
    let last = match lark.ask.calls {
        Calls::Required => "call".to_owned(),
        Calls::Auto => {
            format!("call | before | {} TEXT", lark.mark("<|channel|>final<|message|>"))
        }
    };
    let mut start = format!("{before} ({last})");
    if lark.ask.calls == Calls::Auto && lark.ask.reasoning_begun {
        start.push_str(" | TEXT");
    }
    lark.rule("start", &start);
}

/// The rule of harmony's calls.
fn call_messages(lark: &mut Writer<'_>) {
    let calls: Vec<String> = (0..lark.ask.tools.len())
        .map(|at| {
            let name = &lark.ask.tools[at].name;
            let header =
                format!("<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>");
            format!("{} arguments_{at}", lark.mark(&header))
        })
        .collect();
    lark.rule("call", &calls.join(" | "));
}

/// Messages of reasoning, and of commentary where text may stand before what is held, as many as
/// there are, and their rules.
fn analysis(lark: &mut Writer<'_>, has_commentary: bool) -> String {
    let text = lark.without("TEXT", harmony::MARKS);
    let open =
        |lark: &Writer<'_>, channel: &str| lark.mark(&format!("<|channel|>{channel}<|message|>"));
    let mut thought = open(lark, "analysis");
    if has_commentary {
        thought.push_str(&format!(" | {}", open(lark, "commentary")));
    }
    lark.rule("before", &format!("({thought}) {text}"));
    let next = lark.mark("<|end|><|start|>assistant");
    let begun = if lark.ask.reasoning_begun { format!("{text} {next}") } else { String::new() };
    format!("{begun} (before {next})*")
}
