//! The grammar that an answer holds: what is asked of its text, and where it may call tools, that its calls
//! are of offered ones, with arguments that their schemas allow. What was made of an offer is kept, as
//! clients offer the same tools again.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;
use thiserror::Error;
use tokenmill_engine::constraint::{Constraint, ConstraintError, Held, Settings, Whitespace};
use tokenmill_engine::{Engine, Reading};
use tokenmill_ir::TokenId;
use tokenmill_output::{Ask, Calls, MOST_HELD, Tool, enforceable};
use tokenmill_text::Tokenizer;

use crate::conversation::{Calling, Offered, Tools};

/// Grammars kept, and bytes of the offers they were made of.
const KEPT: usize = 16;
const KEPT_BYTES: usize = 4 << 20;
/// Tools of an offer for which is found out what of their schemas can be enforced.
const TRIED: usize = 64;
/// What is told where calls are read and not held.
const FREE: &str = "calls are not held to the tools on offer: they are too large for a grammar, so \
                    their schemas, parallel_tool_calls and allowed tools have no effect";

/// What was made of one offer of tools: what answers hold, if there is a grammar, and warnings.
type Made = Arc<(Option<Held>, Vec<String>)>;

/// What was made for a model, the latest last.
#[derive(Default)]
pub struct Holds(Mutex<Vec<(String, Made)>>);

impl Holds {
    fn get(&self, key: &str) -> Option<Made> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|one| one.0 == key)?;
        kept[at..].rotate_left(1);
        kept.last().map(|one| Arc::clone(&one.1))
    }

    fn keep(&self, key: String, made: &Made) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|one| one.0 != key);
        kept.push((key, Arc::clone(made)));
        let bytes = |kept: &[(String, Made)]| kept.iter().map(|one| one.0.len()).sum::<usize>();
        while kept.len() > KEPT || bytes(&kept) > KEPT_BYTES {
            kept.remove(0);
        }
    }
}

/// What an answer must hold, and what a user calls that.
#[derive(Debug, Clone, PartialEq)]
pub struct Constrained {
    /// What.
    pub what: Constraint,
    /// The member of a request, or the argument, that says so.
    pub param: &'static str,
}

/// What kind of fault it is that an answer is not held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Of what is asked.
    Bad,
    /// It is known, and cannot be had.
    Unsupported,
    /// Of the constraint.
    Constraint,
}

/// Why an answer is not held to what is asked of it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{message}")]
pub struct Unheld {
    /// The kind.
    pub why: Why,
    /// What is at fault, by the name that [`Constrained`] has, or `tools` or `tool_choice`.
    pub param: &'static str,
    /// In words.
    pub message: String,
}

impl Unheld {
    fn new(why: Why, param: &'static str, message: String) -> Self {
        Self { why, param, message }
    }
}

/// What makes the grammars of a model's answers.
#[derive(Clone, Copy)]
pub struct Grammars<'a> {
    /// The model.
    pub engine: &'a Engine,
    /// Its tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// What was made before.
    pub holds: &'a Holds,
}

/// What an answer with tools is held to that must hold something too, and how it is read then.
///
/// # Errors
/// What is wrong with what it must hold, or cannot be said together with the tools.
pub fn form(
    model: Grammars<'_>,
    (constrained, tools): (&Constrained, &Tools),
    (reading, reasons): (&mut Option<Reading>, bool),
    warnings: &mut Vec<String>,
) -> Result<Held, Unheld> {
    let how = (reading.as_ref(), reasons);
    let may_call = tools.calling == Calling::Auto && tools.callable().next().is_some();
    if may_call && how.0.is_some() && is_json(constrained) {
        // What is wrong with it is told by its own name.
        compiled(model, constrained, &constrained.what)?;
        if let Some(held) = either(model, tools, constrained, how, warnings)? {
            // Calls come before any text, in which marks are none.
            if let Some(reading) = reading {
                (reading.calls_first, reading.keeps_reasoning) = (true, true);
            }
            return Ok(held);
        }
    }
    if tools.must_hold() {
        let param = if tools.calling == Calling::Required { "tool_choice" } else { "tools" };
        let message =
            format!("{} and calls that must hold: one of them at most", constrained.param);
        return Err(Unheld::new(Why::Bad, param, message));
    }
    let what = behind_reasoning(model, constrained, how)?;
    let held = compiled(model, constrained, &what)?;
    uncalled(reading, constrained, warnings);
    Ok(held)
}

fn is_json(constrained: &Constrained) -> bool {
    matches!(constrained.what, Constraint::JsonSchema(_) | Constraint::JsonObject)
}

fn compiled(
    model: Grammars<'_>,
    constrained: &Constrained,
    what: &Constraint,
) -> Result<Held, Unheld> {
    let made = model.engine.grammar(what, &Settings::default());
    made.map_err(|error| {
        let message = format!("{}: {error}", constrained.param);
        Unheld::new(Why::Constraint, constrained.param, message)
    })
}

/// Where all of an answer is JSON, no tool is called. (A grammar of the client's may have calls in it.)
fn uncalled(reading: &mut Option<Reading>, constrained: &Constrained, warnings: &mut Vec<String>) {
    let is_json = is_json(constrained);
    let Some(reading) = reading.as_mut().filter(|reading| is_json && !reading.tools.is_empty())
    else {
        return;
    };
    reading.tools = Arc::default();
    warnings.push(format!("no tool is called: {} holds the whole answer", constrained.param));
}

/// What an answer holds that is read so; nothing where no tools are offered.
///
/// # Errors
/// Calls are required or strict and cannot be held, and schemas of strict tools that are not enforced
/// whole.
pub fn held(
    model: Grammars<'_>,
    tools: &Tools,
    (reading, reasons): (Option<&Reading>, bool),
    warnings: &mut Vec<String>,
) -> Result<Option<Held>, Unheld> {
    let offered: Vec<&Offered> = tools.callable().collect();
    let Some(reading) = reading.filter(|_| !offered.is_empty()) else {
        return if tools.must_hold() { Err(cannot(tools)) } else { Ok(None) };
    };
    let asked = Asked { tools, offered: &offered, reading, reasons, answer: None };
    let made = asked.made(model)?;
    if made.0.is_none() && tools.must_hold() {
        return Err(cannot(tools));
    }
    warnings.extend(made.1.iter().cloned());
    Ok(made.0.clone())
}

/// What an answer holds that either calls tools or is one document; nothing where no tools are
/// offered, a call is required, or one grammar cannot say both.
///
/// # Errors
/// As [`held`].
fn either(
    model: Grammars<'_>,
    tools: &Tools,
    constrained: &Constrained,
    (reading, reasons): (Option<&Reading>, bool),
    warnings: &mut Vec<String>,
) -> Result<Option<Held>, Unheld> {
    let offered: Vec<&Offered> = tools.callable().collect();
    let may_call = tools.calling == Calling::Auto && !offered.is_empty();
    let Some(reading) = reading.filter(|_| may_call) else { return Ok(None) };
    let answer = Some(&constrained.what);
    let made = Asked { tools, offered: &offered, reading, reasons, answer }.made(model)?;
    if made.0.is_some() {
        warnings.extend(made.1.iter().cloned());
    }
    Ok(made.0.clone())
}

/// What an answer is asked to hold.
struct Asked<'a> {
    tools: &'a Tools,
    offered: &'a [&'a Offered],
    reading: &'a Reading,
    reasons: bool,
    /// What the text holds of an answer without calls.
    answer: Option<&'a Constraint>,
}

impl Asked<'_> {
    fn made(&self, model: Grammars<'_>) -> Result<Made, Unheld> {
        let Self { tools, offered, reading, reasons, answer } = self;
        let (begun, calling, single) = (reading.reasoning_begun, tools.calling, tools.single);
        let key = format!("{offered:?} {calling:?} {single} {reasons} {begun} {answer:?}");
        let made = match model.holds.get(&key) {
            Some(made) => made,
            None => Arc::new(make(model, self)?),
        };
        model.holds.keep(key, &made);
        Ok(made)
    }

    /// The grammar of calls with these tools.
    fn grammar(&self, model: Grammars<'_>, tools: &[Tool]) -> Option<Constraint> {
        let calls = match self.tools.calling {
            Calling::Required => Calls::Required,
            Calling::Auto | Calling::None => Calls::Auto,
        };
        let (parallel, reasons) = (!self.tools.single, self.reasons);
        let reasoning_begun = self.reading.reasoning_begun;
        let special: &dyn Fn(&str) -> Option<TokenId> = &|text| special(model, text);
        let ask = Ask { tools, calls, parallel, reasons, reasoning_begun, special };
        match self.answer {
            Some(answer) => self.reading.format.hold_either(answer, &ask),
            None => self.reading.format.hold(&ask),
        }
    }

    /// The tools as grammars know them, and what of texts that they are called with is not held.
    fn schemas(&self, model: Grammars<'_>, settings: &Settings) -> (Vec<Tool>, Vec<String>) {
        let mut left_out = Vec::new();
        let mut schemas = self.reading.tools.to_vec();
        for tool in schemas.iter_mut().filter(|tool| tool.input.is_some()) {
            let held = self.reading.format.holds_input(tool).and_then(|()| {
                let alone =
                    Asked { answer: None, ..*self }.grammar(model, std::slice::from_ref(tool));
                let made = alone.map(|alone| model.engine.grammar(&alone, settings));
                made.map_or(Ok(()), |made| made.map(drop).map_err(|error| error.to_string()))
            });
            if let Err(why) = held {
                let name = &tool.name;
                left_out.push(format!("the grammar of {name}'s input is told and not held: {why}"));
                tool.input = None;
            }
        }
        (schemas, left_out)
    }
}

fn cannot(tools: &Tools) -> Unheld {
    let param = if tools.calling == Calling::Required { "tool_choice" } else { "tools" };
    let message = match tools.callable().count() {
        many if many > MOST_HELD => {
            format!("{param}: {many} tools are offered, calls of at most {MOST_HELD} can be held")
        }
        _ => format!("{param}: calls of this model cannot be held to a grammar"),
    };
    Unheld::new(Why::Unsupported, param, message)
}

/// Makes the grammar, and says what is not held.
fn make(model: Grammars<'_>, asked: &Asked<'_>) -> Result<(Option<Held>, Vec<String>), Unheld> {
    let Asked { tools, offered, reading, .. } = asked;
    let settings = Settings {
        whitespace: Whitespace::Separators { item: ", ".into(), key: ": ".into() },
        ..Settings::default()
    };
    let compile = |what: &Constraint| model.engine.grammar(what, &settings);
    let whole = |schemas: &[Tool]| asked.grammar(model, schemas);
    let none = || Ok((None, vec![FREE.to_owned()]));
    let (mut schemas, mut left_out) = asked.schemas(model, &settings);
    for (tool, offered) in reading.tools.iter().zip(*offered) {
        if offered.strict {
            let enforced = reading.format.enforces(tool);
            enforced.map_err(|why| Unheld::new(Why::Bad, "tools", why))?;
        }
        if reading.format.can_call(tool) {
            continue;
        }
        let message = format!("this model's way of calling cannot write a call of {}", tool.name);
        match offered.strict {
            true => return Err(Unheld::new(Why::Bad, "tools", message)),
            false => left_out.push(message),
        }
    }
    let Some(constraint) = whole(&schemas) else { return none() };
    if let Ok(held) = compile(&constraint) {
        return Ok((Some(held), left_out));
    }
    // Some schema is more than is enforced: which, and is it a strict tool's?
    for (at, (tool, offered)) in schemas.iter_mut().zip(*offered).enumerate() {
        if offered.strict {
            let schema = Constraint::JsonSchema(tool.parameters.clone());
            compile(&schema).map_err(|error| refused(&tool.name, &error))?;
            continue;
        }
        let Ok(vocabulary) = model.engine.vocabulary() else { return none() };
        let (schema, left) = match at < TRIED {
            true => enforceable(&tool.parameters, vocabulary, &settings),
            false => (json!({ "type": "object" }), vec!["all of it".to_owned()]),
        };
        tool.parameters = schema;
        let told = |left| format!("the schema of {}: not enforced: {left}", tool.name);
        left_out.extend(left.into_iter().map(told));
    }
    let Some(constraint) = whole(&schemas) else { return none() };
    match compile(&constraint) {
        Ok(held) => Ok((Some(held), left_out)),
        Err(error) if tools.must_hold() => Err(refused("all tools", &error)),
        // Many large tools: their calls are read, and not held.
        Err(_) => none(),
    }
}

/// What an answer must hold, behind the reasoning of a model that may reason.
///
/// # Errors
/// It cannot be said in one grammar with reasoning that the prompt has begun.
fn behind_reasoning(
    model: Grammars<'_>,
    constrained: &Constrained,
    (reading, reasons): (Option<&Reading>, bool),
) -> Result<Constraint, Unheld> {
    let what = &constrained.what;
    let begun = reading.is_some_and(|reading| reading.reasoning_begun);
    let Some(reading) = reading.filter(|_| reasons || begun) else { return Ok(what.clone()) };
    let special: &dyn Fn(&str) -> Option<TokenId> = &|text| special(model, text);
    let (tools, calls, parallel, reasoning_begun) = (&[][..], Calls::Auto, false, begun);
    let ask = Ask { tools, calls, parallel, reasons, reasoning_begun, special };
    match reading.format.behind_reasoning(what, &ask) {
        Some(both) => Ok(both),
        None if begun => {
            let param = constrained.param;
            let message = format!(
                "{param}: the prompt begins the model's reasoning, behind which only schemas and \
                 choices hold: turn it off (\"chat_template_kwargs\": {{\"enable_thinking\": false}})"
            );
            Err(Unheld::new(Why::Unsupported, param, message))
        }
        None => Ok(what.clone()),
    }
}

/// The id of a text that is a special token.
fn special(model: Grammars<'_>, text: &str) -> Option<TokenId> {
    let tokenizer = model.tokenizer;
    tokenizer.id_of(text).filter(|id| tokenizer.is_special(*id))
}

fn refused(name: &str, error: &ConstraintError) -> Unheld {
    let message = format!("the schema of {name} cannot be enforced: {error}");
    Unheld::new(Why::Constraint, "tools", message)
}
