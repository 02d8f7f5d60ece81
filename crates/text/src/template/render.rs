//! Runs a template: statements write, expressions give values.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use super::call::{Given, optional_int, size, text};
use super::clock::DateTime;
use super::syntax::{Args, Compare, Expr, For, Macro, Step, Stmt, Target};
use super::text::{Text, Writer};
use super::value::{
    Global, Kind, LOOK, Loop, Meter, Result, STEP, Value, all_equal, contains, equal, failed,
    joined, math, order,
};
use super::{MAX_OUTPUT_BYTES, TemplateError, filters, methods};
use crate::bpe::FastMap;

/// Deepest nesting of statements, expressions and macros while running.
const MAX_DEPTH: usize = 400;
/// Longest `range`, as in Jinja's sandbox.
const MAX_RANGE: i128 = 100_000;

/// What a statement does to the loop around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

/// A macro, and how many scopes it sees.
#[derive(Clone)]
struct Bound<'t> {
    code: &'t Macro,
    scopes: usize,
}

/// One rendering.
pub(super) struct Rendering<'t> {
    pub(super) meter: Meter,
    now: DateTime,
    scopes: Vec<FastMap<String, Value>>,
    macros: Vec<Bound<'t>>,
    /// Recursive loops that are running or were.
    loops: Vec<&'t For>,
    out: Writer,
    depth: usize,
}

/// Writes a template with these variables: the text, and which ranges of it the template wrote.
pub(super) fn render(
    body: &[Stmt],
    variables: Vec<(String, Value)>,
    now: DateTime,
    meter: Meter,
) -> Result<(String, Vec<Range<usize>>)> {
    let globals = [
        ("range", Global::Range),
        ("dict", Global::Dict),
        ("namespace", Global::Namespace),
        ("raise_exception", Global::Raise),
        ("strftime_now", Global::Now),
    ];
    let globals = globals.map(|(name, global)| (name.to_owned(), Value::Global(global)));
    let scopes = vec![globals.into_iter().collect(), variables.into_iter().collect()];
    let (macros, loops, out) = (Vec::new(), Vec::new(), Writer::default());
    let mut rendering = Rendering { meter, now, scopes, macros, loops, out, depth: 0 };
    rendering.body(body)?;
    Ok(rendering.out.into_parts())
}

impl<'t> Rendering<'t> {
    fn nested<T>(&mut self, run: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == MAX_DEPTH {
            return Err(TemplateError::OutOfFuel);
        }
        self.depth += 1;
        let done = run(self);
        self.depth -= 1;
        done
    }

    /// Runs in a scope of its own.
    fn scoped<T>(&mut self, run: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.scopes.push(FastMap::default());
        let done = run(self);
        self.scopes.pop();
        done
    }

    /// What a body writes, instead of writing it.
    fn captured(&mut self, run: impl FnOnce(&mut Self) -> Result<()>) -> Result<Text> {
        let outer = std::mem::take(&mut self.out);
        let done = run(self);
        let inner = std::mem::replace(&mut self.out, outer);
        done.map(|()| inner.finish())
    }

    fn write(&mut self, text: &Text) -> Result<()> {
        self.meter.spend(text.cost())?;
        if self.out.len().saturating_add(text.len()) > MAX_OUTPUT_BYTES {
            return Err(TemplateError::OutputTooLong);
        }
        self.out.push_text(text);
        Ok(())
    }

    fn body(&mut self, body: &'t [Stmt]) -> Result<Flow> {
        self.nested(|r| {
            for statement in body {
                r.meter.spend(STEP)?;
                match r.statement(statement)? {
                    Flow::Next => {}
                    flow => return Ok(flow),
                }
            }
            Ok(Flow::Next)
        })
    }

    fn statement(&mut self, statement: &'t Stmt) -> Result<Flow> {
        match statement {
            Stmt::Raw(text) => self.write(text)?,
            Stmt::Emit(value) => {
                let text = self.value(value)?.print(&self.meter)?;
                self.write(&text)?;
            }
            Stmt::If(arms, otherwise) => {
                for (condition, body) in arms {
                    if self.value(condition)?.is_true() {
                        return self.body(body);
                    }
                }
                return self.body(otherwise);
            }
            Stmt::For(repeat) => {
                let over = self.value(&repeat.over)?;
                self.repeat(repeat, &over, 0)?;
            }
            Stmt::Set(target, value) => {
                let value = self.value(value)?;
                self.assign(target, value)?;
            }
            Stmt::SetBlock(target, steps, body) => {
                let text = self.captured(|r| r.scoped(|r| r.body(body).map(drop)))?;
                let value = self.steps(Value::Str(text), steps)?;
                self.assign(target, value)?;
            }
            Stmt::Macro(code) => {
                let value = self.bound(code)?;
                self.set(&code.name, value);
            }
            Stmt::Call(code, call) => {
                let text = self.call_block(code, call)?;
                self.write(&text)?;
            }
            Stmt::Filter(steps, body) => {
                let text = self.captured(|r| r.scoped(|r| r.body(body).map(drop)))?;
                let text = self.steps(Value::Str(text), steps)?.print(&self.meter)?;
                self.write(&text)?;
            }
            Stmt::With(values, body) => {
                return self.scoped(|r| {
                    for (target, value) in values {
                        let value = r.value(value)?;
                        r.assign(target, value)?;
                    }
                    r.body(body)
                });
            }
            Stmt::Break => return Ok(Flow::Break),
            Stmt::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    fn repeat(&mut self, repeat: &'t For, over: &Value, depth: usize) -> Result<()> {
        let mut items = over.items(&self.meter)?;
        if let Some(keep) = &repeat.keep {
            let mut kept = Vec::new();
            for item in items {
                let keeps = self.scoped(|r| {
                    r.assign(&repeat.target, item.clone())?;
                    Ok(r.value(keep)?.is_true())
                })?;
                if keeps {
                    kept.push(item);
                }
            }
            items = kept;
        }
        if items.is_empty() {
            return self.scoped(|r| r.body(&repeat.otherwise).map(drop));
        }
        let recursive = repeat.recursive.then(|| {
            self.loops.push(repeat);
            self.loops.len() - 1
        });
        let items = Rc::new(items);
        let changed = Rc::new(RefCell::new(None));
        for (index, item) in items.iter().enumerate() {
            self.meter.spend(2 * LOOK)?;
            let (items, changed) = (Rc::clone(&items), Rc::clone(&changed));
            let state = Loop { items, index, depth, recursive, changed };
            let flow = self.scoped(|r| {
                r.set("loop", Value::Loop(Rc::new(state)));
                r.assign(&repeat.target, item.clone())?;
                r.body(&repeat.body)
            })?;
            if flow == Flow::Break {
                break;
            }
        }
        Ok(())
    }

    fn set(&mut self, name: &str, value: Value) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name.to_owned(), value);
        }
    }

    fn get(&self, name: &str) -> Value {
        let found = self.scopes.iter().rev().find_map(|scope| scope.get(name));
        found.cloned().unwrap_or(Value::Undefined)
    }

    fn assign(&mut self, target: &'t Target, value: Value) -> Result<()> {
        match target {
            Target::Name(name) => {
                self.meter.spend(name.len())?;
                self.set(name, value);
            }
            Target::Member(name, member) => {
                let Value::Namespace(members) = self.get(name) else {
                    return failed(format!(
                        "{name} is no namespace: {name}.{member} cannot be set"
                    ));
                };
                if matches!(value, Value::Namespace(_) | Value::Loop(_)) {
                    return failed(format!("{} cannot be part of a namespace", value.kind()));
                }
                let mut members = members.borrow_mut();
                self.meter.spend(members.len())?;
                match members.iter_mut().find(|(name, _)| name == member) {
                    Some((_, slot)) => *slot = value,
                    None => members.push((member.clone(), value)),
                }
            }
            Target::Tuple(targets) => {
                let items = value.items(&self.meter)?;
                if items.len() != targets.len() {
                    let (found, wanted) = (items.len(), targets.len());
                    return failed(format!("{found} values for {wanted} names"));
                }
                for (target, item) in targets.iter().zip(items) {
                    self.assign(target, item)?;
                }
            }
        }
        Ok(())
    }

    fn bound(&mut self, code: &'t Macro) -> Result<Value> {
        self.meter.spend(LOOK)?;
        self.macros.push(Bound { code, scopes: self.scopes.len() });
        Ok(Value::Macro(self.macros.len() - 1))
    }

    fn call_block(&mut self, code: &'t Macro, call: &'t Expr) -> Result<Text> {
        let Expr::Path(callee, steps) = call else { return failed("call: no call") };
        let Some((Step::Call(args), before)) = steps.split_last() else {
            return failed("call: no call");
        };
        let callee = self.value(callee)?;
        let callee = self.steps(callee, before)?;
        let mut given = self.given(args)?;
        let caller = self.bound(code)?;
        given.named.push(("caller".to_owned(), caller));
        self.call(&callee, given)?.print(&self.meter)
    }

    /// The value of an expression.
    pub(super) fn value(&mut self, expression: &'t Expr) -> Result<Value> {
        self.meter.spend(STEP)?;
        match expression {
            Expr::None => Ok(Value::None),
            Expr::Bool(value) => Ok(Value::Bool(*value)),
            Expr::Int(value) => Ok(Value::Int(*value)),
            Expr::Float(value) => Ok(Value::Float(*value)),
            Expr::Str(text) => Ok(Value::Str(text.clone())),
            Expr::Name(name) => {
                // One scope after the other is asked.
                self.meter.spend(self.scopes.len() * (1 + name.len() / 8))?;
                Ok(self.get(name))
            }
            other => self.nested(|r| r.compound(other)),
        }
    }

    fn values(&mut self, expressions: &'t [Expr]) -> Result<Vec<Value>> {
        self.meter.spend(LOOK * expressions.len())?;
        expressions.iter().map(|expression| self.value(expression)).collect()
    }

    fn compound(&mut self, expression: &'t Expr) -> Result<Value> {
        match expression {
            Expr::Tuple(items) => Value::list(self.values(items)?, Kind::Tuple),
            Expr::List(items) => Value::list(self.values(items)?, Kind::List),
            Expr::Map(entries) => {
                let pair =
                    |(key, value): &'t (Expr, Expr)| Ok((self.value(key)?, self.value(value)?));
                let entries = entries.iter().map(pair).collect::<Result<Vec<_>>>()?;
                Value::map(entries, &self.meter)
            }
            Expr::Not(value) => Ok(Value::Bool(!self.value(value)?.is_true())),
            Expr::Sign(minus, value) => match self.value(value)? {
                value if value.as_int().is_some() => {
                    let value = value.as_int().unwrap_or(0);
                    Ok(Value::Int(if *minus { value.saturating_neg() } else { value }))
                }
                Value::Float(value) => Ok(Value::Float(if *minus { -value } else { value })),
                other => failed(format!("{} has no sign", other.kind())),
            },
            Expr::Math(first, rest) => {
                let mut value = self.value(first)?;
                for (op, operand) in rest {
                    let operand = self.value(operand)?;
                    value = math(&value, *op, &operand, &self.meter)?;
                }
                Ok(value)
            }
            Expr::Concat(items) => {
                let values = self.values(items)?;
                let texts = values.iter().map(|value| value.print(&self.meter));
                let texts = texts.collect::<Result<Vec<Text>>>()?;
                joined(&texts.iter().collect::<Vec<_>>(), &self.meter)
            }
            Expr::Compare(first, rest) => self.compare(first, rest),
            Expr::And(items) | Expr::Or(items) => {
                let stops = matches!(expression, Expr::Or(_));
                let mut value = Value::Undefined;
                for item in items {
                    value = self.value(item)?;
                    if value.is_true() == stops {
                        break;
                    }
                }
                Ok(value)
            }
            Expr::If(parts) => {
                let (condition, value, other) = &**parts;
                match (self.value(condition)?.is_true(), other) {
                    (true, _) => self.value(value),
                    (false, Some(other)) => self.value(other),
                    (false, None) => Ok(Value::Undefined),
                }
            }
            Expr::Path(base, steps) => {
                let value = self.value(base)?;
                if let (Value::Undefined, Expr::Name(name)) = (&value, &**base)
                    && matches!(steps.first(), Some(Step::Attr(_) | Step::Item(_) | Step::Call(_)))
                {
                    return failed(format!("{name:?} is undefined"));
                }
                self.steps(value, steps)
            }
            simple => self.value(simple),
        }
    }

    fn compare(&mut self, first: &'t Expr, rest: &'t [(Compare, Expr)]) -> Result<Value> {
        let mut left = self.value(first)?;
        for (compare, right) in rest {
            let right = self.value(right)?;
            let holds = match compare {
                Compare::In => contains(&right, &left, &self.meter)?,
                Compare::NotIn => !contains(&right, &left, &self.meter)?,
                Compare::Eq => equal(&left, &right, &self.meter)?,
                Compare::Ne => !equal(&left, &right, &self.meter)?,
                Compare::Lt => order(&left, &right, &self.meter)?.is_lt(),
                Compare::Le => order(&left, &right, &self.meter)?.is_le(),
                Compare::Gt => order(&left, &right, &self.meter)?.is_gt(),
                Compare::Ge => order(&left, &right, &self.meter)?.is_ge(),
            };
            if !holds {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    /// Applies what follows a value, one after the other.
    fn steps(&mut self, mut value: Value, steps: &'t [Step]) -> Result<Value> {
        for step in steps {
            self.meter.spend(STEP)?;
            value = match step {
                Step::Attr(name) => attribute(&value, name, &self.meter)?,
                Step::Item(index) => {
                    let index = self.value(index)?;
                    item(&value, &index, &self.meter)?
                }
                Step::Slice(parts) => {
                    let mut bounds = [None; 3];
                    for (bound, part) in bounds.iter_mut().zip(parts.iter()) {
                        let part = part.as_ref().map(|part| self.value(part)).transpose()?;
                        *bound = optional_int("a slice", part)?;
                    }
                    slice(&value, bounds, &self.meter)?
                }
                Step::Call(args) => {
                    let given = self.given(args)?;
                    self.call(&value, given)?
                }
                Step::Filter(name, args) => {
                    let given = self.given(args)?;
                    filters::apply(self, name, value, given)?
                }
                Step::Test { name, args, negated } => {
                    let given = self.given(args)?;
                    Value::Bool(filters::test(name, &value, given, &self.meter)? != *negated)
                }
            };
        }
        Ok(value)
    }

    fn given(&mut self, args: &'t Args) -> Result<Given> {
        let mut given =
            Given { positional: self.values(&args.positional)?.into(), named: Vec::new() };
        for (name, value) in &args.named {
            self.meter.spend(LOOK + name.len())?;
            given.named.push((name.clone(), self.value(value)?));
        }
        if let Some(list) = &args.list {
            given.positional.extend(self.value(list)?.items(&self.meter)?);
        }
        if let Some(map) = &args.map {
            let Value::Map(map) = self.value(map)? else { return failed("** takes a map") };
            self.meter.spend(LOOK * map.entries.len())?;
            for (name, value) in &map.entries {
                let Some(name) = name.as_str() else { return failed("** takes names") };
                given.named.push((name.to_owned(), value.clone()));
            }
        }
        Ok(given)
    }

    /// Calls a value.
    fn call(&mut self, callee: &Value, given: Given) -> Result<Value> {
        match callee {
            Value::Macro(index) => self.call_macro(*index, given),
            Value::Method(method) => match &method.0 {
                Value::Loop(state) => self.loop_method(state, &method.1, given),
                value => methods::call(value, &method.1, given, &self.meter),
            },
            Value::Loop(state) => {
                let [items] = given.bind("loop", ["items"])?;
                let found = state.recursive.and_then(|at| self.loops.get(at)).copied();
                let Some(repeat) = found else { return failed("the loop is not recursive") };
                let (items, depth) = (items.unwrap_or(Value::Undefined), state.depth + 1);
                let text =
                    self.nested(|r| r.captured(|r| r.scoped(|r| r.repeat(repeat, &items, depth))))?;
                Ok(Value::Str(text))
            }
            Value::Global(global) => self.call_global(*global, given),
            other => failed(format!("{} cannot be called", other.kind())),
        }
    }

    fn call_macro(&mut self, index: usize, mut given: Given) -> Result<Value> {
        let Some(Bound { code, scopes }) = self.macros.get(index).cloned() else {
            return failed("no such macro");
        };
        let mut scope = FastMap::default();
        let is_caller = |(name, _): &(String, Value)| name == "caller";
        if let Some(at) = given.named.iter().position(is_caller) {
            scope.insert("caller".to_owned(), given.named.remove(at).1);
        }
        let mut defaults = Vec::new();
        for (name, default) in &code.params {
            let named = given.named.iter().position(|(given, _)| given == name);
            let named = named.map(|at| given.named.remove(at).1);
            match (given.positional.pop_front().or(named), default) {
                (Some(value), _) => drop(scope.insert(name.clone(), value)),
                (None, Some(default)) => defaults.push((name, default)),
                (None, None) => drop(scope.insert(name.clone(), Value::Undefined)),
            }
        }
        if !given.positional.is_empty() || !given.named.is_empty() {
            return failed(format!("macro {:?} takes {} arguments", code.name, code.params.len()));
        }
        let hidden = self.scopes.split_off(scopes.min(self.scopes.len()));
        self.scopes.push(scope);
        let text = self.nested(|r| {
            r.captured(|r| {
                for (name, default) in defaults {
                    let value = r.value(default)?;
                    r.set(name, value);
                }
                r.body(&code.body).map(drop)
            })
        });
        self.scopes.truncate(scopes);
        self.scopes.extend(hidden);
        text.map(Value::Str)
    }

    fn call_global(&mut self, global: Global, mut given: Given) -> Result<Value> {
        match global {
            Global::Range => range(given, &self.meter),
            Global::Raise => {
                let [message] = given.bind("raise_exception", ["message"])?;
                let message = message.unwrap_or(Value::None).print(&self.meter)?;
                Err(TemplateError::Raised { message: message.as_str().to_owned() })
            }
            Global::Now => {
                let [format] = given.bind("strftime_now", ["format"])?;
                let format = text("strftime_now", format)?;
                // The longest directive writes 24 characters for two.
                self.meter.spend(12 * format.len())?;
                Ok(Value::Str(Text::foreign(self.now.strftime(format.as_str()))))
            }
            Global::Dict | Global::Namespace => {
                let mut entries = Vec::new();
                match given.positional.pop_front() {
                    Some(Value::Map(map)) => {
                        self.meter.spend(LOOK * map.entries.len())?;
                        entries.extend(map.entries.iter().cloned());
                    }
                    Some(pairs) => {
                        for pair in pairs.items(&self.meter)? {
                            match <[Value; 2]>::try_from(pair.items(&self.meter)?) {
                                Ok([key, value]) => entries.push((key, value)),
                                Err(_) => return failed("dict takes pairs"),
                            }
                        }
                    }
                    None => {}
                }
                let named = std::mem::take(&mut given.named).into_iter();
                entries.extend(named.map(|(name, value)| (Value::Str(Text::own(name)), value)));
                given.none("dict")?;
                let map = Value::map(entries, &self.meter)?;
                let Value::Map(map) = &map else { return Ok(map) };
                if global == Global::Dict {
                    return Ok(Value::Map(Rc::clone(map)));
                }
                let member = |(name, value): &(Value, Value)| match name.as_str() {
                    Some(name) => Ok((name.to_owned(), value.clone())),
                    None => failed("a namespace has names as keys"),
                };
                let members = map.entries.iter().map(member).collect::<Result<Vec<_>>>()?;
                Ok(Value::Namespace(Rc::new(RefCell::new(members))))
            }
        }
    }

    fn loop_method(&mut self, state: &Loop, name: &str, given: Given) -> Result<Value> {
        match name {
            "cycle" => {
                let count = given.positional.len();
                let found = state.index.checked_rem(count).and_then(|at| given.positional.get(at));
                found.cloned().map_or_else(|| failed("cycle lacks an argument"), Ok)
            }
            _ => {
                let now: Vec<Value> = given.positional.into();
                let mut last = state.changed.borrow_mut();
                let same = match &*last {
                    Some(last) => all_equal(last, &now, &self.meter)?,
                    None => false,
                };
                *last = Some(now);
                Ok(Value::Bool(!same))
            }
        }
    }
}

fn range(given: Given, meter: &Meter) -> Result<Value> {
    let [first, second, step] = given.bind("range", ["start", "stop", "step"])?;
    let first = optional_int("range", first)?;
    let (start, stop) = match (first, optional_int("range", second)?) {
        (Some(start), Some(stop)) => (start, stop),
        (Some(stop), None) => (0, stop),
        (None, _) => return failed("range lacks an argument"),
    };
    let step = optional_int("range", step)?.unwrap_or(1);
    let (low, high) = if step < 0 { (stop, start) } else { (start, stop) };
    let span = high.saturating_sub(low).max(0);
    let count = match step.checked_abs() {
        None | Some(0) => return failed("range: a step of nothing"),
        Some(step) => span / step + i128::from(span % step != 0),
    };
    if count > MAX_RANGE {
        return failed(format!("range: more than {MAX_RANGE} numbers"));
    }
    meter.spend(LOOK * size(count))?;
    Value::list((0..count).map(|i| Value::Int(start + i * step)).collect(), Kind::List)
}

/// `value.name`: what the value itself has of that name, then a key of a map.
pub(super) fn attribute(value: &Value, name: &str, meter: &Meter) -> Result<Value> {
    if methods::has(value, name) {
        return Ok(Value::Method(Rc::new((value.clone(), name.to_owned()))));
    }
    Ok(match value {
        Value::Undefined => return failed(format!("{name:?} of an undefined value")),
        Value::Map(map) => map.get_str(name, meter)?.cloned().unwrap_or(Value::Undefined),
        Value::Namespace(members) => {
            let members = members.borrow();
            meter.spend(members.len())?;
            let found = members.iter().find(|(member, _)| member == name);
            found.map_or(Value::Undefined, |(_, value)| value.clone())
        }
        // What the filter groupby gives.
        Value::List(list) if list.kind == Kind::Tuple && list.items.len() == 2 => match name {
            "grouper" => list.items.first().cloned().unwrap_or(Value::Undefined),
            "list" => list.items.get(1).cloned().unwrap_or(Value::Undefined),
            _ => Value::Undefined,
        },
        Value::Loop(state) => loop_member(value, state, name),
        _ => Value::Undefined,
    })
}

fn loop_member(value: &Value, state: &Loop, name: &str) -> Value {
    let (index, length) = (state.index, state.items.len());
    let number = |n: usize| Value::Int(n as i128);
    let neighbour = |at: Option<usize>| {
        at.and_then(|at| state.items.get(at)).cloned().unwrap_or(Value::Undefined)
    };
    match name {
        "index" => number(index + 1),
        "index0" => number(index),
        "revindex" => number(length - index),
        "revindex0" => number(length - index - 1),
        "first" => Value::Bool(index == 0),
        "last" => Value::Bool(index + 1 == length),
        "length" => number(length),
        "depth" => number(state.depth + 1),
        "depth0" => number(state.depth),
        "previtem" => neighbour(index.checked_sub(1)),
        "nextitem" => neighbour(Some(index + 1)),
        "cycle" | "changed" => Value::Method(Rc::new((value.clone(), name.to_owned()))),
        _ => Value::Undefined,
    }
}

/// `value[index]`: an item or a key, then what the value itself has of that name.
pub(super) fn item(value: &Value, index: &Value, meter: &Meter) -> Result<Value> {
    meter.spend(STEP)?;
    let place = |count: usize| {
        let at = index.as_int()?;
        let at = if at < 0 { at + count as i128 } else { at };
        usize::try_from(at).ok().filter(|at| *at < count)
    };
    let found = match value {
        Value::Undefined => return failed("an item of an undefined value"),
        Value::Map(map) => map.get(index, meter)?.cloned(),
        Value::List(list) if list.kind != Kind::Lazy => {
            place(list.items.len()).and_then(|at| list.items.get(at)).cloned()
        }
        Value::Str(text) => {
            meter.spend(text.len())?;
            let whole = text.as_str();
            let found = place(whole.chars().count()).and_then(|at| whole.char_indices().nth(at));
            found.map(|(at, c)| Value::Str(text.slice(at..at + c.len_utf8())))
        }
        _ => None,
    };
    match (found, index.as_str()) {
        (Some(found), _) => Ok(found),
        (None, Some(name)) if !matches!(value, Value::Map(_)) || methods::has(value, name) => {
            attribute(value, name, meter)
        }
        (None, _) => Ok(Value::Undefined),
    }
}

/// `value[start:stop:step]`.
fn slice(value: &Value, [start, stop, step]: [Option<i128>; 3], meter: &Meter) -> Result<Value> {
    let step = step.unwrap_or(1);
    if step == 0 {
        return failed("a slice with a step of nothing");
    }
    let places = |count: usize| {
        let count = count as i128;
        // Python's rules: places before the beginning and behind the end are moved there.
        let (low, high) = if step < 0 { (-1, count - 1) } else { (0, count) };
        let place =
            |at: i128| (if at < 0 { at.saturating_add(count) } else { at }).clamp(low, high);
        let (first, last) = if step < 0 { (high, low) } else { (low, high) };
        let (start, stop) = (start.map_or(first, place), stop.map_or(last, place));
        let mut at = start;
        let mut places = Vec::new();
        while if step < 0 { at > stop } else { at < stop } {
            places.extend(usize::try_from(at));
            at = at.saturating_add(step);
        }
        places
    };
    match value {
        Value::List(list) if list.kind != Kind::Lazy => {
            meter.spend(LOOK * list.items.len())?;
            let items = places(list.items.len()).into_iter();
            let items = items.filter_map(|at| list.items.get(at)).cloned().collect();
            Value::list(items, list.kind)
        }
        Value::Str(text) if step == 1 => {
            meter.spend(2 * text.cost())?;
            Ok(Value::Str(text.slice(methods::window(text.as_str(), start, stop))))
        }
        Value::Str(text) => {
            // Offsets of the characters and of the end.
            meter.spend(24 * text.cost())?;
            let whole = text.as_str();
            let mut offsets: Vec<usize> = whole.char_indices().map(|(at, _)| at).collect();
            offsets.push(whole.len());
            let places = places(offsets.len() - 1);
            let offset = |at: usize| offsets.get(at).copied().unwrap_or(whole.len());
            let mut out = Writer::default();
            for at in places {
                out.push_text(&text.slice(offset(at)..offset(at + 1)));
            }
            Ok(Value::Str(out.finish()))
        }
        Value::Undefined => failed("a slice of an undefined value"),
        // As an item that is not there.
        _ => Ok(Value::Undefined),
    }
}
