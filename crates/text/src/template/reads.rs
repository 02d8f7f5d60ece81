//! Which variables a template reads that it does not set itself.

use std::collections::HashSet;

use super::syntax::{Args, Expr, Macro, Step, Stmt, Target};

/// Whether a variable is read before the template sets it.
pub(super) fn variable(body: &[Stmt], name: &str) -> bool {
    let mut walk = Walk { wanted: name, set: HashSet::new(), found: false };
    walk.body(body);
    walk.found
}

struct Walk<'t> {
    wanted: &'t str,
    set: HashSet<&'t str>,
    found: bool,
}

impl<'t> Walk<'t> {
    fn body(&mut self, body: &'t [Stmt]) {
        for statement in body {
            match statement {
                Stmt::Raw(_) | Stmt::Break | Stmt::Continue => {}
                Stmt::Emit(value) => self.value(value),
                Stmt::If(arms, otherwise) => {
                    for (condition, body) in arms {
                        self.value(condition);
                        self.body(body);
                    }
                    self.body(otherwise);
                }
                Stmt::For(repeat) => {
                    self.value(&repeat.over);
                    self.target(&repeat.target);
                    repeat.keep.iter().for_each(|keep| self.value(keep));
                    self.body(&repeat.body);
                    self.body(&repeat.otherwise);
                }
                Stmt::Set(target, value) => {
                    self.value(value);
                    self.target(target);
                }
                Stmt::SetBlock(target, steps, body) => {
                    self.body(body);
                    self.steps(steps);
                    self.target(target);
                }
                Stmt::Macro(code) => self.code(code),
                Stmt::Call(code, call) => {
                    self.value(call);
                    self.code(code);
                }
                Stmt::Filter(steps, body) => {
                    self.steps(steps);
                    self.body(body);
                }
                Stmt::With(values, body) => {
                    for (target, value) in values {
                        self.value(value);
                        self.target(target);
                    }
                    self.body(body);
                }
            }
        }
    }

    fn code(&mut self, code: &'t Macro) {
        self.set.insert(&code.name);
        for (name, default) in &code.params {
            default.iter().for_each(|default| self.value(default));
            self.set.insert(name);
        }
        self.body(&code.body);
    }

    fn target(&mut self, target: &'t Target) {
        match target {
            Target::Name(name) => drop(self.set.insert(name)),
            Target::Member(..) => {}
            Target::Tuple(targets) => targets.iter().for_each(|target| self.target(target)),
        }
    }

    fn value(&mut self, value: &'t Expr) {
        match value {
            Expr::None | Expr::Bool(_) | Expr::Int(_) | Expr::Float(_) | Expr::Str(_) => {}
            Expr::Name(name) => {
                self.found |= name == self.wanted && !self.set.contains(name.as_str());
            }
            Expr::Tuple(items)
            | Expr::List(items)
            | Expr::Concat(items)
            | Expr::And(items)
            | Expr::Or(items) => items.iter().for_each(|item| self.value(item)),
            Expr::Map(entries) => entries.iter().for_each(|(key, value)| {
                self.value(key);
                self.value(value);
            }),
            Expr::Not(value) | Expr::Sign(_, value) => self.value(value),
            Expr::Math(first, rest) => {
                self.value(first);
                rest.iter().for_each(|(_, value)| self.value(value));
            }
            Expr::Compare(first, rest) => {
                self.value(first);
                rest.iter().for_each(|(_, value)| self.value(value));
            }
            Expr::If(parts) => {
                let (condition, value, other) = &**parts;
                [condition, value].into_iter().chain(other).for_each(|value| self.value(value));
            }
            Expr::Path(base, steps) => {
                self.value(base);
                self.steps(steps);
            }
        }
    }

    fn steps(&mut self, steps: &'t [Step]) {
        for step in steps {
            match step {
                Step::Attr(_) => {}
                Step::Item(index) => self.value(index),
                Step::Slice(parts) => parts.iter().flatten().for_each(|part| self.value(part)),
                Step::Call(args) | Step::Filter(_, args) | Step::Test { args, .. } => {
                    self.args(args);
                }
            }
        }
    }

    fn args(&mut self, args: &'t Args) {
        args.positional.iter().for_each(|value| self.value(value));
        args.named.iter().for_each(|(_, value)| self.value(value));
        args.list.iter().chain(&args.map).for_each(|value| self.value(value));
    }
}
