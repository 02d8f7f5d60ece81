//! How large a constraint may be, and how JSON is spaced.

/// White space in JSON.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Whitespace {
    /// None: `{"a":[1,2]}`. Small models loop in white space where it is free.
    #[default]
    Compact,
    /// Up to one blank, or a line break and up to 32 blanks, between any two signs.
    Flexible,
    /// Fixed separators, as a template's `tojson` writes them: `", "` and `": "`.
    Separators {
        /// Between items and between properties; a comma in it.
        item: String,
        /// Between a name and its value; a colon in it.
        key: String,
    },
}

/// Limits of one constraint. None is a time: the same request ends the same way everywhere.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Bytes of the constraint's text, schemas counted as compact JSON.
    pub source_bytes: usize,
    /// Schemas within schemas, values within values, brackets within brackets.
    pub depth: usize,
    /// Depths along a chain of references, summed.
    pub chain: usize,
    /// Schemas in a schema, references followed once.
    pub schemas: usize,
    /// Properties of one object, names in one `required`, rules of a GBNF: an object of optional
    /// ones takes four parser items for each, see `row_items`.
    pub properties: usize,
    /// Values of all `enum`s, or choices.
    pub values: usize,
    /// Bytes of one regular expression.
    pub pattern_bytes: usize,
    /// Regular expressions and formats in a schema.
    pub patterns: usize,
    /// Most that `minLength`, `minItems` or a regular expression's count may be.
    pub repeat: usize,
    /// Work to build the first states.
    pub compile_fuel: u64,
    /// Work of one mask.
    pub mask_fuel: u64,
    /// Parser items of one mask: what is ambiguous without end takes some tens of milliseconds to
    /// pass it, what people write needs some hundreds.
    pub mask_items: usize,
    /// Parser items of one byte.
    pub row_items: usize,
    /// States of one answer's lexer, each 1 to 2 kB.
    pub states: usize,
    /// Symbols of the compiled grammar.
    pub symbols: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
            source_bytes: 1 << 20,
            depth: 64,
            chain: 256,
            schemas: 20_000,
            properties: 400,
            values: 5000,
            pattern_bytes: 8192,
            patterns: 256,
            repeat: 10_000,
            compile_fuel: 1_000_000,
            mask_fuel: 200_000,
            mask_items: 10_000,
            row_items: 2000,
            states: 50_000,
            symbols: 200_000,
        }
    }
}

/// What `compile` is told beside the constraint.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Settings {
    /// White space in JSON.
    pub whitespace: Whitespace,
    /// Limits.
    pub bounds: Bounds,
}
