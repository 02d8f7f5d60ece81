//! The grammar that an answer holds which may call tools: its calls are of offered ones, with
//! arguments that their schemas allow. Once made it is kept, as clients offer the same tools again.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;
use tokenmill_engine::Reading;
use tokenmill_engine::constraint::{Constraint, ConstraintError, Held, Settings, Whitespace};
use tokenmill_ir::TokenId;
use tokenmill_output::{Ask, Calls, MOST_HELD, Tool, enforceable};

use crate::ask::Constrained;
use crate::conversation::{Calling, Offered, Tools};
use crate::error::ApiError;
use crate::shared::Model;

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

/// What an answer holds that is read so; nothing where no tools are offered.
///
/// # Errors
/// 400 where calls are required or strict and cannot be held, and for schemas of strict tools that
/// are not enforced whole.
pub fn held(
    model: &Model,
    tools: &Tools,
    (reading, reasons): (Option<&Reading>, bool),
    warnings: &mut Vec<String>,
) -> Result<Option<Held>, ApiError> {
    let offered: Vec<&Offered> = tools.callable().collect();
    let Some(reading) = reading.filter(|_| !offered.is_empty()) else {
        return if tools.must_hold() { Err(cannot(tools)) } else { Ok(None) };
    };
    let begun = reading.reasoning_begun;
    let key = format!("{offered:?} {:?} {} {reasons} {begun}", tools.calling, tools.single);
    let made = match model.holds.get(&key) {
        Some(made) => made,
        None => Arc::new(make(model, tools, &offered, (reading, reasons))?),
    };
    model.holds.keep(key, &made);
    if made.0.is_none() && tools.must_hold() {
        return Err(cannot(tools));
    }
    warnings.extend(made.1.iter().cloned());
    Ok(made.0.clone())
}

fn cannot(tools: &Tools) -> ApiError {
    let param = if tools.calling == Calling::Required { "tool_choice" } else { "tools" };
    let message = match tools.callable().count() {
        many if many > MOST_HELD => {
            format!("{param}: {many} tools are offered, calls of at most {MOST_HELD} can be held")
        }
        _ => format!("{param}: calls of this model cannot be held to a grammar"),
    };
    ApiError::unsupported(param, message)
}

/// Makes the grammar, and says what is not held.
fn make(
    model: &Model,
    tools: &Tools,
    offered: &[&Offered],
    (reading, reasons): (&Reading, bool),
) -> Result<(Option<Held>, Vec<String>), ApiError> {
    let settings = Settings {
        whitespace: Whitespace::Separators { item: ", ".into(), key: ": ".into() },
        ..Settings::default()
    };
    let compile = |what: &Constraint| model.served.engine.grammar(what, &settings);
    let whole = |schemas: &[Tool]| {
        let calls = match tools.calling {
            Calling::Required => Calls::Required,
            Calling::Auto | Calling::None => Calls::Auto,
        };
        let (parallel, reasoning_begun) = (!tools.single, reading.reasoning_begun);
        let special: &dyn Fn(&str) -> Option<TokenId> = &|text| special(model, text);
        let ask = Ask { tools: schemas, calls, parallel, reasons, reasoning_begun, special };
        reading.format.hold(&ask)
    };
    let none = || Ok((None, vec![FREE.to_owned()]));
    let mut left_out = Vec::new();
    for (tool, offered) in reading.tools.iter().zip(offered) {
        if offered.strict {
            let enforced = reading.format.enforces(tool);
            enforced.map_err(|why| ApiError::bad("tools", why))?;
        }
        if reading.format.can_call(tool) {
            continue;
        }
        let message = format!("this model's way of calling cannot write a call of {}", tool.name);
        match offered.strict {
            true => return Err(ApiError::bad("tools", message)),
            false => left_out.push(message),
        }
    }
    let Some(constraint) = whole(&reading.tools) else { return none() };
    if let Ok(held) = compile(&constraint) {
        return Ok((Some(held), left_out));
    }
    // Some schema is more than is enforced: which, and is it a strict tool's?
    let mut schemas = reading.tools.to_vec();
    for (at, (tool, offered)) in schemas.iter_mut().zip(offered).enumerate() {
        if offered.strict {
            let schema = Constraint::JsonSchema(tool.parameters.clone());
            compile(&schema).map_err(|error| refused(&tool.name, &error))?;
            continue;
        }
        let Ok(vocabulary) = model.served.engine.vocabulary() else { return none() };
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
/// 400 for what cannot be said in one grammar with reasoning that the prompt has begun.
pub fn behind_reasoning(
    model: &Model,
    constrained: &Constrained,
    (reading, reasons): (Option<&Reading>, bool),
) -> Result<Constraint, ApiError> {
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
            Err(ApiError::unsupported(param, message))
        }
        None => Ok(what.clone()),
    }
}

/// The id of a text that is a special token.
fn special(model: &Model, text: &str) -> Option<TokenId> {
    let tokenizer = &model.served.tokenizer;
    tokenizer.id_of(text).filter(|id| tokenizer.is_special(*id))
}

fn refused(name: &str, error: &ConstraintError) -> ApiError {
    let message = format!("the schema of {name} cannot be enforced: {error}");
    ApiError { code: Some("invalid_constraint"), ..ApiError::bad("tools", message) }
}
