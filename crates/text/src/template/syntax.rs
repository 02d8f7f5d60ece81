//! A template as data: what the parser makes of its source.

use super::text::Text;

/// A statement, or text that is written as it is.
#[derive(Debug)]
pub(super) enum Stmt {
    Raw(Text),
    Emit(Expr),
    /// Conditions in order, each with its body, and the body of `else`.
    If(Vec<(Expr, Vec<Stmt>)>, Vec<Stmt>),
    For(For),
    Set(Target, Expr),
    /// What the body writes, through filters.
    SetBlock(Target, Vec<Step>, Vec<Stmt>),
    Macro(Macro),
    /// Calls a macro that may call the body back.
    Call(Macro, Expr),
    Filter(Vec<Step>, Vec<Stmt>),
    /// A scope of its own, with variables.
    With(Vec<(Target, Expr)>, Vec<Stmt>),
    Break,
    Continue,
}

#[derive(Debug)]
pub(super) struct For {
    pub(super) target: Target,
    pub(super) over: Expr,
    pub(super) keep: Option<Expr>,
    pub(super) recursive: bool,
    pub(super) body: Vec<Stmt>,
    pub(super) otherwise: Vec<Stmt>,
}

#[derive(Debug)]
pub(super) struct Macro {
    pub(super) name: String,
    pub(super) params: Vec<(String, Option<Expr>)>,
    pub(super) body: Vec<Stmt>,
}

/// What is assigned to.
#[derive(Debug)]
pub(super) enum Target {
    Name(String),
    /// A member of a namespace.
    Member(String, String),
    Tuple(Vec<Target>),
}

#[derive(Debug)]
pub(super) enum Expr {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(Text),
    Name(String),
    Tuple(Vec<Expr>),
    List(Vec<Expr>),
    Map(Vec<(Expr, Expr)>),
    Not(Box<Expr>),
    Sign(bool, Box<Expr>),
    /// Operators of one precedence, from the left.
    Math(Box<Expr>, Vec<(Math, Expr)>),
    Concat(Vec<Expr>),
    Compare(Box<Expr>, Vec<(Compare, Expr)>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    /// Condition, value, other value.
    If(Box<(Expr, Expr, Option<Expr>)>),
    /// What is applied to a value, one after the other.
    Path(Box<Expr>, Vec<Step>),
}

#[derive(Debug)]
pub(super) enum Step {
    Attr(String),
    Item(Expr),
    Slice(Box<[Option<Expr>; 3]>),
    Call(Args),
    Filter(String, Args),
    Test { name: String, args: Args, negated: bool },
}

#[derive(Debug, Default)]
pub(super) struct Args {
    pub(super) positional: Vec<Expr>,
    pub(super) named: Vec<(String, Expr)>,
    /// `*list`: further positional ones.
    pub(super) list: Option<Box<Expr>>,
    /// `**map`: further named ones.
    pub(super) map: Option<Box<Expr>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Math {
    Add,
    Sub,
    Mul,
    Div,
    FloorDiv,
    Rem,
    Pow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compare {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    In,
    NotIn,
}
