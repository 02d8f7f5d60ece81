//! Tokens to statements and expressions, by Jinja's grammar. Chains of operators are lists, so
//! only what is written nested nests.

use super::lexer::{Token, tokens};
use super::syntax::{Args, Compare, Expr, For, Macro, Math, Step, Stmt, Target};
use super::text::Text;

/// Deepest nesting of brackets and blocks. Published templates stay below 20.
const MAX_DEPTH: usize = 96;
/// Most words and signs in one tag. Published templates stay below 250.
const MAX_TAG: usize = 4096;
/// Most `elif` branches of one condition.
const MAX_ARMS: usize = 256;

/// Words that may follow a test and are not its argument.
const AFTER_TESTS: &[&str] = &["else", "or", "and", "is", "if", "in", "not", "recursive"];

type Result<T> = std::result::Result<T, String>;

/// Parses a whole template.
pub(super) fn parse(source: &str) -> Result<Vec<Stmt>> {
    let tokens = tokens(source)?;
    let is_end = |(token, _): &(Token, usize)| matches!(token, Token::Tag(_) | Token::Data(_));
    if let Some(long) = tokens.split(is_end).find(|tag| tag.len() > MAX_TAG) {
        let line = long.first().map_or(1, |(_, line)| *line);
        return Err(format!("line {line}: a tag has more than {MAX_TAG} words and signs"));
    }
    let mut parser = Parser { tokens, at: 0, depth: 0 };
    let (body, end) = parser.body(&[])?;
    match end {
        None => Ok(body),
        Some(name) => Err(parser.wrong(&format!("unexpected {name:?}"))),
    }
}

struct Parser {
    tokens: Vec<(Token, usize)>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    fn next(&mut self) -> Option<Token> {
        let (token, _) = self.tokens.get_mut(self.at)?;
        self.at += 1;
        // Every token is looked at before it is taken, and taken once.
        Some(std::mem::replace(token, Token::Op("")))
    }

    fn wrong(&self, what: &str) -> String {
        let last = self.tokens.len().saturating_sub(1);
        let line = self.tokens.get(self.at.min(last)).map_or(1, |(_, line)| *line);
        format!("line {line}: {what}")
    }

    fn unexpected(&self) -> String {
        match self.peek() {
            Some(Token::Tag(tag)) => self.wrong(&format!("unexpected {tag:?}")),
            Some(Token::Op(op)) => self.wrong(&format!("unexpected {op:?}")),
            Some(Token::Name(name)) => self.wrong(&format!("unexpected {name:?}")),
            Some(_) => self.wrong("unexpected text or number"),
            None => self.wrong("unexpected end"),
        }
    }

    fn is(&self, op: &'static str) -> bool {
        self.peek() == Some(&Token::Op(op))
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.peek(), Some(Token::Name(found)) if found == name)
    }

    fn take(&mut self, op: &'static str) -> bool {
        let found = self.is(op);
        self.at += usize::from(found);
        found
    }

    fn take_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, op: &'static str) -> Result<()> {
        if self.take(op) { Ok(()) } else { Err(self.unexpected()) }
    }

    fn end_of_tag(&mut self) -> Result<()> {
        match self.peek() {
            Some(Token::Tag("%}" | "}}")) => {
                self.at += 1;
                Ok(())
            }
            _ => Err(self.unexpected()),
        }
    }

    fn name(&mut self) -> Result<String> {
        match self.peek() {
            Some(Token::Name(_)) => match self.next() {
                Some(Token::Name(name)) => Ok(name),
                _ => Err(self.unexpected()),
            },
            _ => Err(self.unexpected()),
        }
    }

    fn nested<T>(&mut self, parse: impl FnOnce(&mut Parser) -> Result<T>) -> Result<T> {
        if self.depth == MAX_DEPTH {
            return Err(self.wrong(&format!("nested deeper than {MAX_DEPTH} levels")));
        }
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// Statements up to a tag of one of these names, which is taken without its end.
    fn body(&mut self, ends: &[&str]) -> Result<(Vec<Stmt>, Option<String>)> {
        self.nested(|p| {
            let mut body = Vec::new();
            while let Some(token) = p.next() {
                match token {
                    Token::Data(text) => body.push(Stmt::Raw(Text::own(text))),
                    Token::Tag("{{") => {
                        body.push(Stmt::Emit(p.tuple(true)?));
                        p.end_of_tag()?;
                    }
                    _ => {
                        let name = p.name()?;
                        if ends.contains(&name.as_str()) {
                            return Ok((body, Some(name)));
                        }
                        body.push(p.statement(&name)?);
                    }
                }
            }
            match ends {
                [] => Ok((body, None)),
                ends => Err(p.wrong(&format!("{} is missing", ends.join(" or ")))),
            }
        })
    }

    /// A body that ends with one tag, whose end is taken too.
    fn closed(&mut self, end: &str) -> Result<Vec<Stmt>> {
        let (body, _) = self.body(&[end])?;
        // `endblock` may repeat the name, `endmacro` and the others too.
        if let Some(Token::Name(_)) = self.peek() {
            self.at += 1;
        }
        self.end_of_tag()?;
        Ok(body)
    }

    fn statement(&mut self, name: &str) -> Result<Stmt> {
        match name {
            "if" => self.condition(),
            "for" => self.repeat(),
            "set" => self.set(),
            "macro" => {
                let name = self.name()?;
                let params = self.params()?;
                self.end_of_tag()?;
                Ok(Stmt::Macro(Macro { name, params, body: self.closed("endmacro")? }))
            }
            "call" => {
                let params = if self.is("(") { self.params()? } else { Vec::new() };
                let call = self.expression()?;
                self.end_of_tag()?;
                let body = self.closed("endcall")?;
                Ok(Stmt::Call(Macro { name: "caller".to_owned(), params, body }, call))
            }
            "filter" => {
                let mut steps = vec![self.filter()?];
                while self.take("|") {
                    steps.push(self.filter()?);
                }
                self.end_of_tag()?;
                Ok(Stmt::Filter(steps, self.closed("endfilter")?))
            }
            "with" => self.with(),
            // Marks, for training, what the assistant wrote.
            "generation" => {
                self.end_of_tag()?;
                Ok(Stmt::With(Vec::new(), self.closed("endgeneration")?))
            }
            "block" => {
                self.name()?;
                self.end_of_tag()?;
                Ok(Stmt::With(Vec::new(), self.closed("endblock")?))
            }
            "autoescape" => {
                let value = self.expression()?;
                if !matches!(value, Expr::Bool(false)) {
                    return Err(self.wrong("escaping for HTML is not supported"));
                }
                self.end_of_tag()?;
                Ok(Stmt::With(Vec::new(), self.closed("endautoescape")?))
            }
            "break" | "continue" => {
                self.end_of_tag()?;
                Ok(if name == "break" { Stmt::Break } else { Stmt::Continue })
            }
            _ => Err(self.wrong(&format!("there is no tag {name:?}"))),
        }
    }

    fn condition(&mut self) -> Result<Stmt> {
        let mut arms = Vec::new();
        let mut otherwise = Vec::new();
        loop {
            let condition = self.tuple(false)?;
            self.end_of_tag()?;
            let (body, end) = self.body(&["elif", "else", "endif"])?;
            arms.push((condition, body));
            if arms.len() > MAX_ARMS {
                return Err(self.wrong(&format!("more than {MAX_ARMS} elif branches")));
            }
            match end.as_deref() {
                Some("elif") => continue,
                Some("else") => {
                    self.end_of_tag()?;
                    otherwise = self.closed("endif")?;
                }
                _ => self.end_of_tag()?,
            }
            return Ok(Stmt::If(arms, otherwise));
        }
    }

    fn repeat(&mut self) -> Result<Stmt> {
        let target = self.targets()?;
        if !self.take_name("in") {
            return Err(self.unexpected());
        }
        let over = self.tuple(false)?;
        let keep = if self.take_name("if") { Some(self.expression()?) } else { None };
        let recursive = self.take_name("recursive");
        self.end_of_tag()?;
        let (body, end) = self.body(&["else", "endfor"])?;
        self.end_of_tag()?;
        let otherwise = match end.as_deref() {
            Some("else") => self.closed("endfor")?,
            _ => Vec::new(),
        };
        Ok(Stmt::For(For { target, over, keep, recursive, body, otherwise }))
    }

    fn set(&mut self) -> Result<Stmt> {
        let target = self.targets()?;
        if self.take("=") {
            let value = self.tuple(true)?;
            self.end_of_tag()?;
            return Ok(Stmt::Set(target, value));
        }
        let mut steps = Vec::new();
        while self.take("|") {
            steps.push(self.filter()?);
        }
        self.end_of_tag()?;
        Ok(Stmt::SetBlock(target, steps, self.closed("endset")?))
    }

    fn with(&mut self) -> Result<Stmt> {
        let mut values = Vec::new();
        while !matches!(self.peek(), Some(Token::Tag(_))) {
            if !values.is_empty() {
                self.expect(",")?;
            }
            let target = self.target()?;
            self.expect("=")?;
            values.push((target, self.expression()?));
        }
        self.end_of_tag()?;
        Ok(Stmt::With(values, self.closed("endwith")?))
    }

    fn params(&mut self) -> Result<Vec<(String, Option<Expr>)>> {
        self.expect("(")?;
        let mut params = Vec::new();
        while !self.take(")") {
            if !params.is_empty() {
                self.expect(",")?;
                if self.take(")") {
                    break;
                }
            }
            let name = self.name()?;
            let default = if self.take("=") { Some(self.expression()?) } else { None };
            params.push((name, default));
        }
        Ok(params)
    }

    fn targets(&mut self) -> Result<Target> {
        let first = self.target()?;
        if !self.is(",") {
            return Ok(first);
        }
        let mut targets = vec![first];
        while self.take(",") {
            if matches!(self.peek(), Some(Token::Name(name)) if name != "in") || self.is("(") {
                targets.push(self.target()?);
            }
        }
        Ok(Target::Tuple(targets))
    }

    fn target(&mut self) -> Result<Target> {
        if self.take("(") {
            let inside = self.nested(Parser::targets)?;
            self.expect(")")?;
            return Ok(inside);
        }
        let name = self.name()?;
        if matches!(name.as_str(), "true" | "false" | "none" | "True" | "False" | "None") {
            return Err(self.wrong(&format!("{name} cannot be assigned to")));
        }
        match self.take(".") {
            true => Ok(Target::Member(name, self.name()?)),
            false => Ok(Target::Name(name)),
        }
    }

    /// Expressions with commas between them are a tuple.
    fn tuple(&mut self, conditional: bool) -> Result<Expr> {
        let item = |p: &mut Parser| if conditional { p.expression() } else { p.nested(Parser::or) };
        let first = item(self)?;
        if !self.is(",") {
            return Ok(first);
        }
        let mut items = vec![first];
        while self.take(",") {
            let ends = matches!(self.peek(), None | Some(Token::Tag(_) | Token::Op(")" | "]")));
            if ends || self.is_name("recursive") {
                break;
            }
            items.push(item(self)?);
        }
        Ok(Expr::Tuple(items))
    }

    fn expression(&mut self) -> Result<Expr> {
        self.nested(|p| {
            let value = p.or()?;
            if !p.take_name("if") {
                return Ok(value);
            }
            let condition = p.or()?;
            let other = if p.take_name("else") { Some(p.expression()?) } else { None };
            Ok(Expr::If(Box::new((condition, value, other))))
        })
    }

    fn or(&mut self) -> Result<Expr> {
        let mut items = vec![self.and()?];
        while self.take_name("or") {
            items.push(self.and()?);
        }
        Ok(one_or(items, Expr::Or))
    }

    fn and(&mut self) -> Result<Expr> {
        let mut items = vec![self.not()?];
        while self.take_name("and") {
            items.push(self.not()?);
        }
        Ok(one_or(items, Expr::And))
    }

    fn not(&mut self) -> Result<Expr> {
        match self.take_name("not") {
            true => Ok(Expr::Not(Box::new(self.nested(Parser::not)?))),
            false => self.compare(),
        }
    }

    fn compare(&mut self) -> Result<Expr> {
        const OPERATORS: [(&str, Compare); 6] = [
            ("==", Compare::Eq),
            ("!=", Compare::Ne),
            ("<=", Compare::Le),
            (">=", Compare::Ge),
            ("<", Compare::Lt),
            (">", Compare::Gt),
        ];
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let found = OPERATORS.iter().find(|(op, _)| self.take(op)).map(|(_, compare)| *compare);
            let compare = match found {
                Some(compare) => compare,
                None if self.take_name("in") => Compare::In,
                None if self.is_name("not") => {
                    let after = self.tokens.get(self.at + 1).map(|(token, _)| token);
                    if !matches!(after, Some(Token::Name(name)) if name == "in") {
                        break;
                    }
                    self.at += 2;
                    Compare::NotIn
                }
                None => break,
            };
            rest.push((compare, self.sum()?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Compare(Box::new(first), rest) })
    }

    /// Operators of one precedence.
    fn math(
        &mut self,
        operators: &[(&'static str, Math)],
        operand: fn(&mut Parser) -> Result<Expr>,
    ) -> Result<Expr> {
        let first = operand(self)?;
        let mut rest = Vec::new();
        while let Some((_, math)) = operators.iter().find(|(op, _)| self.take(op)) {
            rest.push((*math, operand(self)?));
        }
        Ok(if rest.is_empty() { first } else { Expr::Math(Box::new(first), rest) })
    }

    fn sum(&mut self) -> Result<Expr> {
        self.math(&[("+", Math::Add), ("-", Math::Sub)], Parser::concat)
    }

    fn concat(&mut self) -> Result<Expr> {
        let mut items = vec![self.product()?];
        while self.take("~") {
            items.push(self.product()?);
        }
        Ok(one_or(items, Expr::Concat))
    }

    fn product(&mut self) -> Result<Expr> {
        let operators =
            [("*", Math::Mul), ("/", Math::Div), ("//", Math::FloorDiv), ("%", Math::Rem)];
        self.math(&operators, Parser::power)
    }

    fn power(&mut self) -> Result<Expr> {
        self.math(&[("**", Math::Pow)], |p| p.unary(true))
    }

    fn unary(&mut self, filters: bool) -> Result<Expr> {
        let value = if self.take("-") {
            Expr::Sign(true, Box::new(self.nested(|p| p.unary(false))?))
        } else if self.take("+") {
            Expr::Sign(false, Box::new(self.nested(|p| p.unary(false))?))
        } else {
            self.primary()?
        };
        self.path(value, filters)
    }

    /// What is applied to a value.
    fn path(&mut self, value: Expr, filters: bool) -> Result<Expr> {
        let mut steps = Vec::new();
        loop {
            if self.take(".") {
                steps.push(self.attribute()?);
            } else if self.take("[") {
                steps.push(self.nested(Parser::subscript)?);
            } else if self.is("(") {
                steps.push(Step::Call(self.nested(Parser::args)?));
            } else if filters && self.take("|") {
                steps.push(self.filter()?);
            } else if filters && self.take_name("is") {
                steps.push(self.test()?);
            } else {
                break;
            }
        }
        Ok(if steps.is_empty() { value } else { Expr::Path(Box::new(value), steps) })
    }

    fn primary(&mut self) -> Result<Expr> {
        match self.peek() {
            Some(Token::Name(_) | Token::Str(_) | Token::Int(_) | Token::Float(_)) => {}
            Some(Token::Op("(")) => {
                self.at += 1;
                return self.nested(Parser::parenthesis);
            }
            Some(Token::Op("[")) => {
                self.at += 1;
                return Ok(Expr::List(self.nested(|p| p.items("]"))?));
            }
            Some(Token::Op("{")) => {
                self.at += 1;
                return self.nested(Parser::map);
            }
            _ => return Err(self.unexpected()),
        }
        Ok(match self.next() {
            Some(Token::Name(name)) => match name.as_str() {
                "true" | "True" => Expr::Bool(true),
                "false" | "False" => Expr::Bool(false),
                "none" | "None" => Expr::None,
                _ => Expr::Name(name),
            },
            Some(Token::Str(mut text)) => {
                while let Some(Token::Str(more)) = self.peek() {
                    text.push_str(more);
                    self.at += 1;
                }
                Expr::Str(Text::own(text))
            }
            Some(Token::Int(value)) => Expr::Int(value),
            Some(Token::Float(value)) => Expr::Float(value),
            _ => return Err(self.unexpected()),
        })
    }

    fn parenthesis(&mut self) -> Result<Expr> {
        if self.take(")") {
            return Ok(Expr::Tuple(Vec::new()));
        }
        let inside = self.tuple(true)?;
        self.expect(")")?;
        Ok(inside)
    }

    fn items(&mut self, close: &'static str) -> Result<Vec<Expr>> {
        let mut items = Vec::new();
        while !self.take(close) {
            if !items.is_empty() {
                self.expect(",")?;
                if self.take(close) {
                    break;
                }
            }
            items.push(self.expression()?);
        }
        Ok(items)
    }

    fn map(&mut self) -> Result<Expr> {
        let mut items = Vec::new();
        while !self.take("}") {
            if !items.is_empty() {
                self.expect(",")?;
                if self.take("}") {
                    break;
                }
            }
            let key = self.expression()?;
            self.expect(":")?;
            items.push((key, self.expression()?));
        }
        Ok(Expr::Map(items))
    }

    fn attribute(&mut self) -> Result<Step> {
        if let Some(Token::Int(index)) = self.peek() {
            let index = *index;
            self.at += 1;
            return Ok(Step::Item(Expr::Int(index)));
        }
        Ok(Step::Attr(self.name()?))
    }

    fn subscript(&mut self) -> Result<Step> {
        let mut parts = [None, None, None];
        let mut colons = 0;
        while !self.take("]") {
            if self.take(":") {
                colons += 1;
                continue;
            }
            match parts.get_mut(colons) {
                Some(slot @ None) => *slot = Some(self.tuple(true)?),
                _ => return Err(self.unexpected()),
            }
        }
        match (colons, parts) {
            (0, [Some(index), None, None]) => Ok(Step::Item(index)),
            (0, _) => Err(self.wrong("an empty subscript")),
            (1 | 2, parts) => Ok(Step::Slice(Box::new(parts))),
            _ => Err(self.unexpected()),
        }
    }

    fn args(&mut self) -> Result<Args> {
        self.expect("(")?;
        let mut args = Args::default();
        let mut first = true;
        while !self.take(")") {
            if !first {
                self.expect(",")?;
                if self.take(")") {
                    break;
                }
            }
            first = false;
            let after = self.tokens.get(self.at + 1).map(|(token, _)| token);
            let named =
                matches!(self.peek(), Some(Token::Name(_))) && after == Some(&Token::Op("="));
            if self.take("**") {
                args.map = Some(Box::new(self.expression()?));
            } else if self.take("*") {
                args.list = Some(Box::new(self.expression()?));
            } else if named {
                let name = self.name()?;
                self.expect("=")?;
                args.named.push((name, self.expression()?));
            } else {
                args.positional.push(self.expression()?);
            }
        }
        Ok(args)
    }

    fn filter(&mut self) -> Result<Step> {
        let mut name = self.name()?;
        while self.take(".") {
            name = format!("{name}.{}", self.name()?);
        }
        let args = if self.is("(") { self.nested(Parser::args)? } else { Args::default() };
        Ok(Step::Filter(name, args))
    }

    fn test(&mut self) -> Result<Step> {
        let negated = self.take_name("not");
        let name = self.name()?;
        let takes_one = match self.peek() {
            Some(Token::Name(next)) => !AFTER_TESTS.contains(&next.as_str()),
            Some(Token::Str(_) | Token::Int(_) | Token::Float(_) | Token::Op("[" | "{")) => true,
            _ => false,
        };
        let args = if self.is("(") {
            self.nested(Parser::args)?
        } else if takes_one {
            let value = self.nested(Parser::primary)?;
            Args { positional: vec![self.path(value, false)?], ..Args::default() }
        } else {
            Args::default()
        };
        Ok(Step::Test { name, args, negated })
    }
}

/// The one item itself, or the list of several.
fn one_or(mut items: Vec<Expr>, many: fn(Vec<Expr>) -> Expr) -> Expr {
    match items.len() {
        1 => items.pop().unwrap_or(Expr::None),
        _ => many(items),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_template_is_told_with_its_line() {
        let cases = [
            ("a\n{% if %}", "line 2: unexpected \"%}\""),
            ("{% if x %}a", "line 1: elif or else or endif is missing"),
            ("{% endif %}", "line 1: there is no tag \"endif\""),
            ("{% include 'x' %}", "line 1: there is no tag \"include\""),
            ("{{ a b }}", "line 1: unexpected \"b\""),
            ("{{ a[] }}", "line 1: an empty subscript"),
            ("{% set true = 1 %}", "line 1: true cannot be assigned to"),
            ("{{ }}", "line 1: unexpected \"}}\""),
            ("{{ f(a=1 2) }}", "line 1: unexpected text or number"),
        ];
        for (source, expect) in cases {
            assert_eq!(parse(source).expect_err("refused"), expect, "{source}");
        }
    }

    #[test]
    fn only_what_nests_is_deep() {
        let n = 2000;
        for source in [
            format!("{{{{ a{} }}}}", "~a".repeat(n)),
            format!("{{{{ a{} }}}}", "+1".repeat(n)),
            format!("{{{{ a{} }}}}", "|f".repeat(n)),
            format!("{{{{ a{} }}}}", " or a".repeat(n)),
            format!("{{% if 1 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(200)),
            format!("{{{{ '{}' }}}}", "x".repeat(100 * n)),
        ] {
            assert!(parse(&source).is_ok(), "{}", &source[..40]);
        }
        for source in [
            format!("{{{{ a{} }}}}", "~a".repeat(50 * n)),
            format!("{{% if 1 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(n)),
        ] {
            assert!(parse(&source).expect_err("too long").contains("more than"));
        }
        let n = n / 4;
        for source in [
            format!("{{{{ {}1{} }}}}", "[".repeat(n), "]".repeat(n)),
            format!("{{{{ {}1 }}}}", "-".repeat(n)),
            format!("{{{{ {}1 }}}}", "not ".repeat(n)),
            format!("{{{{ {}1 }}}}", "1 if 1 else ".repeat(n)),
            "{% if 1 %}".repeat(n),
        ] {
            let error = parse(&source).expect_err("too deep");
            assert!(error.contains("nested deeper"), "{error}");
        }
    }
}
