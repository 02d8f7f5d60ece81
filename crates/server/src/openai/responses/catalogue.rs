//! The tools of a Responses request: of four forms, some inside namespaces. A model is offered
//! functions; how a call of one is written and read back is kept beside it.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};
use tokenmill_engine::constraint::Constraint;
use tokenmill_output::INPUT;
use tokenmill_text::spelled;

use crate::config::Limits;
use crate::conversation::{Calling, Offered, Tools};
use crate::error::ApiError;
use crate::fields::{Fields, Ignored, Notes, list, shown, text};
use crate::openai::tools::{self, LeftOut, chosen_of, function, mode, word};

/// The name by which the client's search for tools is offered.
const SEARCH: &str = "tool_search";
/// Members of tools that change nothing here.
const TOOL_IGNORED: &[Ignored] = &[
    Ignored { name: "allowed_callers", because: "only the model calls here" },
    Ignored { name: "output_schema", because: "results are taken as they come" },
];

/// What a client's tool is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Called with JSON.
    Function,
    /// Called with a text.
    Custom,
    /// A search for more tools that the client runs.
    Search,
}

/// A tool, as its client calls it.
#[derive(Debug, Clone, PartialEq)]
pub struct Known {
    /// What the model calls it.
    pub offered: String,
    /// Its form.
    pub form: Form,
    /// The client's name.
    pub name: String,
    /// Where that name is one.
    pub namespace: Option<String>,
}

/// Whence tools come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The request's `tools`: each is there once.
    Request,
    /// Items of the input: they may repeat what is there.
    Item,
    /// Those of them that a search has found: the conversation has them where that stands, so that
    /// the prompt before stays as it was.
    Found,
}

/// Where a tool stands.
#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    path: &'a str,
    namespace: Option<&'a str>,
    source: Source,
}

/// All tools of a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Catalogue {
    known: Vec<Known>,
    offered: Vec<Offered>,
    /// Where of `known` a tool is, by its namespace and name.
    places: HashMap<(Option<String>, String), usize>,
    /// What the model calls them.
    taken: HashSet<String>,
    left_out: LeftOut,
}

impl Catalogue {
    /// Takes a list of tools; the names of those that can be called.
    ///
    /// # Errors
    /// 400 naming the first that is wrong.
    pub fn add(
        &mut self,
        value: Value,
        (path, source): (&str, Source),
        limits: &Limits,
        notes: &mut Notes,
    ) -> Result<Vec<String>, ApiError> {
        let mut names = Vec::new();
        for (i, item) in list(value, limits.tools, path)?.into_iter().enumerate() {
            let path = format!("{path}[{i}]");
            let mut fields = Fields::of(item, &path)?;
            let kind = text(fields.require("type")?, &fields.path("type"))?;
            if kind != "namespace" {
                let place = Place { path: &path, namespace: None, source };
                names.extend(self.one(fields, &kind, place, (limits, notes))?);
                continue;
            }
            let space = tools::name(fields.require("name")?, &fields.path("name"))?;
            fields.take("description");
            let path = fields.path("tools");
            let inside = list(fields.require("tools")?, limits.tools, &path)?;
            fields.finish(&[], notes)?;
            for (i, item) in inside.into_iter().enumerate() {
                let path = format!("{path}[{i}]");
                let mut fields = Fields::of(item, &path)?;
                let kind = text(fields.require("type")?, &fields.path("type"))?;
                let place = Place { path: &path, namespace: Some(&space), source };
                names.extend(self.one(fields, &kind, place, (limits, notes))?);
            }
        }
        Ok(names)
    }

    /// Takes a tool; its name where it can be called.
    fn one(
        &mut self,
        mut fields: Fields,
        kind: &str,
        place: Place<'_>,
        (limits, notes): (&Limits, &mut Notes),
    ) -> Result<Option<String>, ApiError> {
        let path = place.path;
        let (form, tool) = match kind {
            "function" => (Form::Function, function(&mut fields)?),
            "custom" => (Form::Custom, custom(&mut fields, path, notes)?),
            SEARCH if fields.text("execution")?.as_deref() == Some("client") => {
                fields.put("name", SEARCH.into());
                (Form::Search, function(&mut fields)?)
            }
            _ => {
                self.left_out.add(kind, &mut fields);
                let kind = shown(kind);
                notes.add(format!("{path} was ignored: this server runs no {kind}"));
                return Ok(None);
            }
        };
        // Whatever is sent is loaded; calls end before their answer does.
        fields.take("defer_loading");
        fields.take("async");
        fields.finish(TOOL_IGNORED, notes)?;
        self.enter(form, tool, place, limits.tools)
    }

    /// Enters a tool under its name, or under that of its namespace too where it is taken.
    fn enter(
        &mut self,
        form: Form,
        mut tool: Offered,
        Place { path, namespace, source }: Place<'_>,
        most: usize,
    ) -> Result<Option<String>, ApiError> {
        let name = tool.name.clone();
        if let Some(there) = self.find(namespace, &name) {
            if source != Source::Request {
                return Ok(Some(there.offered.clone()));
            }
            let message = format!("{path}: there are two tools of the name {}", shown(&name));
            return Err(ApiError::bad(path, message));
        }
        if self.known.len() >= most {
            let message = format!("{path}: there are more than {most} tools, which is the limit");
            return Err(ApiError::bad(path, message));
        }
        if self.taken.contains(&name) {
            tool.name = format!("{}__{name}", namespace.unwrap_or_default());
        }
        if self.taken.contains(&tool.name) {
            let message = format!("{path}: there is another tool {}", shown(&tool.name));
            return Err(ApiError::bad(path, message));
        }
        let offered = tool.name.clone();
        let namespace = namespace.map(str::to_owned);
        self.places.insert((namespace.clone(), name.clone()), self.known.len());
        self.taken.insert(offered.clone());
        // (Without others there would be none that a template shows.)
        tool.later = source == Source::Found && self.offered.iter().any(|other| !other.later);
        self.known.push(Known { offered: offered.clone(), form, name, namespace });
        self.offered.push(tool);
        Ok(Some(offered))
    }

    fn find(&self, namespace: Option<&str>, name: &str) -> Option<&Known> {
        let place = self.places.get(&(namespace.map(str::to_owned), name.to_owned()))?;
        self.known.get(*place)
    }

    /// What the model calls a tool; the client's name where there is none such any more.
    pub fn offered_name(&self, namespace: Option<&str>, name: &str) -> String {
        self.find(namespace, name).map_or(name, |k| &k.offered).to_owned()
    }

    /// What a search has found, in words: tools that are not on offer from the start as they are.
    pub fn found(&self, names: &[String]) -> String {
        if names.is_empty() {
            return "No tools were found.".to_owned();
        }
        let mut told = format!("These tools can be called now: {}", names.join(", "));
        let later = self.offered.iter().filter(|tool| tool.later && names.contains(&tool.name));
        let lines: Vec<String> = later.map(|tool| spelled(&tool.value())).collect();
        if !lines.is_empty() {
            told.push_str(&format!("\n<tools>\n{}\n</tools>", lines.join("\n")));
        }
        told
    }

    /// What the model calls the search for tools.
    pub fn search_name(&self) -> String {
        let search = self.known.iter().find(|k| k.form == Form::Search);
        search.map_or(SEARCH, |k| &k.offered).to_owned()
    }

    /// The tools with what of them may be called, and how their calls are written.
    ///
    /// # Errors
    /// 400 for a choice that is none, or not among them.
    pub fn chosen(
        self,
        fields: &mut Fields,
        limits: &Limits,
        notes: &mut Notes,
    ) -> Result<(Tools, Vec<Known>), ApiError> {
        let single = fields.flag("parallel_tool_calls")? == Some(false);
        let chosen = match fields.take("tool_choice") {
            None => (Calling::Auto, None),
            Some(value) => self.choice(value, limits, notes)?,
        };
        Ok((chosen_of(self.offered, &self.left_out, chosen, single)?, self.known))
    }

    fn choice(
        &self,
        value: Value,
        limits: &Limits,
        notes: &mut Notes,
    ) -> Result<(Calling, Option<Vec<String>>), ApiError> {
        let path = "tool_choice";
        if let Some(calling) = word(&value) {
            return Ok((calling?, None));
        }
        let mut fields = Fields::of(value, path)?;
        let kind = text(fields.require("type")?, "tool_choice.type")?;
        let found = match kind.as_str() {
            "function" | "custom" => (Calling::Required, Some(vec![self.named(&mut fields)?])),
            SEARCH => (Calling::Required, Some(vec![self.search_name()])),
            "allowed_tools" => {
                let path = fields.path("mode");
                let word = text(fields.require("mode")?, &path)?;
                let calling = mode(&word, &["auto", "required"], &path)?;
                (calling, Some(self.allowed(&mut fields, limits, notes)?))
            }
            other => {
                let message = format!("tool_choice: this server runs no {}", shown(other));
                return Err(ApiError::unsupported("tool_choice.type", message));
            }
        };
        fields.finish(&[], notes)?;
        Ok(found)
    }

    /// Those of `allowed_tools` that can be called here.
    fn allowed(
        &self,
        fields: &mut Fields,
        limits: &Limits,
        notes: &mut Notes,
    ) -> Result<Vec<String>, ApiError> {
        let path = fields.path("tools");
        let mut only = Vec::new();
        for (i, item) in
            list(fields.require("tools")?, limits.tools, &path)?.into_iter().enumerate()
        {
            let path = format!("{path}[{i}]");
            let mut fields = Fields::of(item, &path)?;
            match fields.text("type")?.as_deref() {
                Some("function" | "custom") => only.push(self.named(&mut fields)?),
                Some(SEARCH) => only.push(self.search_name()),
                other => {
                    let kind = shown(other.unwrap_or_default());
                    notes.add(format!("{path} was ignored: this server runs no {kind}"));
                }
            }
        }
        match only.is_empty() {
            true => Err(ApiError::bad(&path, format!("{path} names no tool of this request"))),
            false => Ok(only),
        }
    }

    fn named(&self, fields: &mut Fields) -> Result<String, ApiError> {
        let name = tools::name(fields.require("name")?, &fields.path("name"))?;
        let namespace = fields.text("namespace")?;
        Ok(self.offered_name(namespace.as_deref(), &name))
    }
}

/// A tool that is called with a text: a function with one text. The model is told the grammar of
/// that, and held to it where its way of calling can be.
fn custom(fields: &mut Fields, path: &str, notes: &mut Notes) -> Result<Offered, ApiError> {
    let name = tools::name(fields.require("name")?, &fields.path("name"))?;
    let mut described: Vec<String> = fields.text("description")?.into_iter().collect();
    let mut input = None;
    if let Some(format) = fields.take("format") {
        let mut format = Fields::of(format, &fields.path("format"))?;
        match text(format.require("type")?, &format.path("type"))?.as_str() {
            "text" => {}
            _ => {
                let syntax = format.text("syntax")?.unwrap_or_else(|| "unknown".to_owned());
                let definition = format.text("definition")?.unwrap_or_default();
                let shown = shown(&syntax);
                described.push(format!("The input holds this {shown} grammar:\n{definition}"));
                match syntax.as_str() {
                    "lark" => input = Some(Constraint::Lark(definition)),
                    "regex" => input = Some(Constraint::Regex(definition)),
                    _ => notes.add(format!(
                        "{path}.format: the model is told the grammar, and not held to it: a syntax \
                         {shown} is not known"
                    )),
                }
            }
        }
        format.finish(&[], notes)?;
    }
    let parameters = json!({
        "type": "object",
        "properties": { INPUT: { "type": "string" } },
        "required": [INPUT],
        "additionalProperties": false,
    });
    let description = Some(described.join("\n\n")).filter(|text| !text.is_empty());
    Ok(Offered { input, ..Offered::new(name, description, parameters, false) })
}
