//! Which tools can be called in a row: their names and keys stand in its calls as they are, so that
//! its reader finds them again.

use serde_json::Value;

use crate::body::{Body, Types, resolved};
use crate::format::{Form, Section};
use crate::harmony;
use crate::{Format, Tool};

impl Format {
    /// Whether calls of the tool can be written in this row. [`Format::hold`] leaves out a tool
    /// of which none can; the parser reads what looks like one as text.
    pub fn can_call(&self, tool: &Tool) -> bool {
        match &self.form {
            Form::Harmony => harmony::takes_name(&tool.name),
            Form::Marked(marked) => {
                !marked.sections.is_empty()
                    && marked.sections.iter().all(|section| is_written(section, tool))
            }
        }
    }
}

/// Most listed values of a tool's parameters, where they are written one by one.
const MOST: usize = 1 << 16;

fn is_written(section: &Section, tool: &Tool) -> bool {
    let Some(body) = section.bodies.first() else {
        return false;
    };
    let schema = resolved(&tool.parameters);
    let properties = schema.get("properties").and_then(Value::as_object);
    let is_known = |key: &str| properties.is_some_and(|all| all.contains_key(key));
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    let mut required = required.filter_map(Value::as_str);
    let mut keys = properties.into_iter().flatten().map(|(key, _)| key);
    let mut seen = 0;
    let mut has_value = |key: &str| {
        let stops = match body {
            Body::Tagged(tags) => tags.stops(),
            Body::Gemma { quote } => vec![*quote],
            _ => return true,
        };
        let listed = listed(&Types::of(Some(&tool.parameters), key), &stops);
        seen += listed.as_ref().map_or(0, Vec::len);
        listed.is_some() && seen <= MOST
    };
    let takes_arguments = !body.has_keys()
        || (keys.all(|key| body.takes_key(key) && has_value(key)) && required.all(is_known));
    body.takes_name(&tool.name) && takes_arguments
}

/// The listed values that can stand before these marks, as texts; `None` where none of them can.
pub(super) fn listed(types: &Types, stops: &[&str]) -> Option<Vec<String>> {
    let all = types.listed_texts();
    let has_none = all.is_empty();
    let can_stand = |text: &String| !stops.iter().any(|mark| text.contains(mark));
    let listed: Vec<String> = all.into_iter().filter(can_stand).collect();
    (has_none || !listed.is_empty()).then_some(listed)
}
