//! Every keyword of JSON Schema, drafts 3 to 2020-12, and what becomes of it.

use Holds::{Dependencies, Items, List, Map, Nothing, One};
use Treatment::{Annotation, Enforced, Partly, Refused};

/// What becomes of a keyword.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// What it says holds for every answer.
    Enforced,
    /// Enforced where the note says, else refused by name.
    Partly,
    /// Says nothing about which values are valid.
    Annotation,
    /// Refused by name, but for values that say nothing.
    Refused,
}

/// Which schemas stand in a keyword's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holds {
    Nothing,
    One,
    List,
    Map,
    /// One schema or a list of them.
    Items,
    /// By name a schema or a list of names.
    Dependencies,
}

/// One row.
#[derive(Debug, Clone, Copy)]
pub struct Keyword {
    /// Its name.
    pub name: &'static str,
    /// What becomes of it.
    pub treatment: Treatment,
    /// When, or what else holds.
    pub note: &'static str,
    pub(crate) holds: Holds,
}

const fn row(
    name: &'static str,
    treatment: Treatment,
    holds: Holds,
    note: &'static str,
) -> Keyword {
    Keyword { name, treatment, note, holds }
}

/// Every keyword that a draft knows. Other names are annotations, as the standard has it.
pub const KEYWORDS: &[Keyword] = &[
    // what a schema is called and where it stands
    row("$schema", Partly, Nothing, "drafts 4 to 2020-12"),
    row("$id", Partly, Nothing, "at the root, or where no `$ref` is"),
    row("id", Partly, Nothing, "draft 4's `$id`; an annotation elsewhere"),
    row("$anchor", Enforced, Nothing, ""),
    row("$ref", Partly, Nothing, "within the document; what stands beside it holds too"),
    row("$defs", Enforced, Map, ""),
    row("definitions", Enforced, Map, ""),
    row("$dynamicRef", Refused, Nothing, ""),
    row("$dynamicAnchor", Annotation, Nothing, "no `$dynamicRef` is taken"),
    row("$recursiveRef", Refused, Nothing, ""),
    row("$recursiveAnchor", Annotation, Nothing, "no `$recursiveRef` is taken"),
    row("$vocabulary", Annotation, Nothing, ""),
    row("$comment", Annotation, Nothing, ""),
    // any value
    row("type", Enforced, Nothing, "an integer has neither point nor exponent"),
    row("enum", Partly, Nothing, "no control characters but \\b \\f \\n \\r \\t"),
    row("const", Partly, Nothing, "as `enum`"),
    row("allOf", Partly, List, "where the intersection can be made"),
    row("anyOf", Enforced, List, ""),
    row("oneOf", Partly, List, "where the schemas are provably disjoint"),
    row("not", Refused, One, "`false` says nothing"),
    row("if", Refused, One, "alone it says nothing"),
    row("then", Refused, One, "without `if` it says nothing"),
    row("else", Refused, One, "without `if` it says nothing"),
    // numbers
    row("minimum", Partly, Nothing, "up to 2^53"),
    row("maximum", Partly, Nothing, "up to 2^53"),
    row("exclusiveMinimum", Partly, Nothing, "up to 2^53; draft 4's booleans too"),
    row("exclusiveMaximum", Partly, Nothing, "up to 2^53; draft 4's booleans too"),
    row(
        "multipleOf",
        Partly,
        Nothing,
        "digits up to 1000, 6 decimals; numbers then stay under 2^53",
    ),
    row("divisibleBy", Refused, Nothing, "draft 3"),
    // strings
    row("minLength", Enforced, Nothing, ""),
    row("maxLength", Enforced, Nothing, ""),
    row("pattern", Partly, Nothing, "no lookaround, back reference or word boundary"),
    row("format", Partly, Nothing, "the formats of `formats.rs`"),
    row("contentEncoding", Annotation, Nothing, ""),
    row("contentMediaType", Annotation, Nothing, ""),
    row("contentSchema", Annotation, One, ""),
    // arrays
    row("items", Enforced, Items, "a list of schemas is `prefixItems`"),
    row("prefixItems", Enforced, List, ""),
    row("additionalItems", Enforced, One, "after a list in `items`"),
    row("minItems", Enforced, Nothing, ""),
    row("maxItems", Enforced, Nothing, ""),
    row("uniqueItems", Refused, Nothing, "`false`, and with `maxItems` 0 or 1, says nothing"),
    row("contains", Refused, One, ""),
    row("minContains", Refused, Nothing, "without `contains` it says nothing"),
    row("maxContains", Refused, Nothing, "without `contains` it says nothing"),
    row("unevaluatedItems", Partly, One, "without `$ref`, `allOf`, `anyOf` or `oneOf` beside it"),
    // objects
    row("properties", Enforced, Map, "in the order written"),
    row("patternProperties", Partly, Map, "the patterns disjoint"),
    row("additionalProperties", Enforced, One, ""),
    row("required", Enforced, Nothing, ""),
    row("minProperties", Partly, Nothing, "at most one more than is required"),
    row("maxProperties", Partly, Nothing, "where all of `properties` are required, or 0 or 1"),
    row("propertyNames", Partly, One, "a `pattern` or an `enum`, without `properties` beside it"),
    row("dependencies", Refused, Dependencies, "`{}` says nothing"),
    row("dependentRequired", Refused, Nothing, "`{}` says nothing"),
    row("dependentSchemas", Refused, Map, "`{}` says nothing"),
    row("unevaluatedProperties", Partly, One, "as `unevaluatedItems`"),
    row("disallow", Refused, Nothing, "draft 3"),
    row("extends", Refused, Nothing, "draft 3"),
    // words for people
    row("title", Annotation, Nothing, ""),
    row("description", Annotation, Nothing, ""),
    row("default", Annotation, Nothing, ""),
    row("examples", Annotation, Nothing, ""),
    row("deprecated", Annotation, Nothing, ""),
    row("readOnly", Annotation, Nothing, ""),
    row("writeOnly", Annotation, Nothing, ""),
];

/// The row of a name, none where no draft knows it.
pub(crate) fn keyword(name: &str) -> Option<&'static Keyword> {
    KEYWORDS.iter().find(|row| row.name == name)
}
