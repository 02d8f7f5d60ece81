//! Random schemas: documents drawn from the masks alone are valid, says another's validator, and
//! no draw gets stuck.

mod bytes;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Draws, END, allowed, piece_bytes};
use serde_json::{Value, json};
use tokenmill_grammar::{Constraint, Grammar, Refused, Settings, Vocabulary, compile};

/// Schemas to be enforced, each with documents drawn.
const SCHEMAS: usize = 2200;
const DOCUMENTS: usize = 3;
/// Tokens after which a draw prefers to close what is open.
const LONG: usize = 60;
/// Tokens after which a draw gives up: no fault of the grammar's, if a mask is still there.
const LONGEST: usize = 600;

const PATTERNS: &[&str] = &[
    "^[a-c]{2,4}$",
    "^\\d{3}-\\d{4}$",
    "ab+",
    "^(foo|bar)_\\w+$",
    "^\\S+$",
    "^.{3}$",
    "x|y",
    "^a",
    "z$",
    "^[^\"\\\\]*$",
    "^\\/[a-z/]*$",
    "(^q|r$)",
    "^[A-Z][a-z]*( [A-Z][a-z]*)*$",
];
const FORMATS: &[&str] =
    &["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
const NAMES: &[&str] = &["a", "b", "name", "größe", "x y", "d\"q", "n\nl", "type", "$ref"];

struct Maker {
    draws: Draws,
    defs: usize,
}

impl Maker {
    fn below(&mut self, limit: usize) -> usize {
        self.draws.below(limit)
    }

    fn one<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
        list[self.below(list.len())]
    }

    fn document(&mut self) -> Value {
        self.defs = self.below(4);
        let defs: serde_json::Map<String, Value> =
            (0..self.defs).map(|i| (format!("d{i}"), self.schema(2))).collect();
        let mut root = self.schema(3);
        if let (Some(map), false) = (root.as_object_mut(), defs.is_empty()) {
            map.insert("$defs".into(), Value::Object(defs));
        }
        root
    }

    fn schema(&mut self, depth: usize) -> Value {
        let kind = self.below(if depth == 0 { 9 } else { 19 });
        match kind {
            0 => self.string(),
            1 | 2 => self.number(),
            3 => json!({"type": "boolean"}),
            4 => self.literals(),
            5 => json!({"const": self.value(1)}),
            6 => json!({"type": ["string", "null"], "maxLength": 5}),
            7 => json!({"type": "string", "format": self.one(FORMATS)}),
            8 if self.defs > 0 => json!({"$ref": format!("#/$defs/d{}", self.below(self.defs))}),
            8 => json!({"type": ["integer", "boolean"], "minimum": self.below(50)}),
            9 | 10 => self.object(depth - 1),
            11 => self.array(depth - 1),
            12 => self.tuple(depth - 1),
            13 => self.map(depth - 1),
            14 => {
                let list: Vec<Value> =
                    (0..2 + self.below(2)).map(|_| self.schema(depth - 1)).collect();
                json!({"anyOf": list})
            }
            15 => json!({"allOf": [self.object(depth - 1), self.object(depth - 1)]}),
            16 => json!({"allOf": [self.number(), self.number()]}),
            17 => self.one_of(depth - 1),
            _ => self.mixed(depth - 1),
        }
    }

    fn string(&mut self) -> Value {
        let mut schema = json!({"type": "string"});
        let least = self.below(4);
        if self.below(2) == 0 {
            schema["minLength"] = least.into();
        }
        if self.below(2) == 0 {
            schema["maxLength"] = (least + self.below(12)).into();
        }
        if self.below(3) == 0 {
            schema["pattern"] = self.one(PATTERNS).into();
        }
        schema
    }

    fn decimal(&mut self) -> Value {
        let value = self.below(4000) as f64 - 2000.0;
        match self.below(4) {
            0 => json!(value / 10.0),
            1 => json!(value / 1000.0),
            2 => json!(value as i64 / 40),
            _ => json!(value as i64),
        }
    }

    fn number(&mut self) -> Value {
        let mut schema = json!({"type": self.one(&["integer", "number"])});
        for key in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"] {
            if self.below(3) == 0 {
                schema[key] = self.decimal();
            }
        }
        if self.below(4) == 0 {
            schema["multipleOf"] =
                [json!(3), json!(7), json!(0.05), json!(10)][self.below(4)].clone();
        }
        schema
    }

    fn value(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 5 } else { 7 }) {
            0 => json!(null),
            1 => json!(self.below(2) == 0),
            2 => self.decimal(),
            3 => json!(["", "red", "a\"b", "日本", "\\", "\n", "🙂", "naïve"][self.below(8)]),
            4 => json!(self.below(100)),
            5 => json!([self.value(depth - 1), self.value(depth - 1)]),
            _ => json!({self.one(NAMES): self.value(depth - 1), "k": self.value(0)}),
        }
    }

    fn literals(&mut self) -> Value {
        let list: Vec<Value> = (0..1 + self.below(4)).map(|_| self.value(1)).collect();
        let mut schema = json!({"enum": list});
        if self.below(4) == 0 {
            schema["type"] = json!(["string", "integer", "null"]);
        }
        schema
    }

    fn object(&mut self, depth: usize) -> Value {
        let mut schema = json!({"type": "object", "properties": {}});
        let mut required = Vec::new();
        for _ in 0..self.below(4) {
            let name = self.one(NAMES);
            schema["properties"][name] = self.schema(depth);
            if self.below(2) == 0 && !required.contains(&name) {
                required.push(name);
            }
        }
        if self.below(8) == 0 {
            required.push("extra");
        }
        if self.below(2) == 0 {
            schema["required"] = json!(required);
        }
        match self.below(4) {
            0 => {}
            1 => schema["additionalProperties"] = self.schema(0),
            _ => schema["additionalProperties"] = json!(false),
        }
        if self.below(8) == 0 {
            schema["minProperties"] = json!(1 + self.below(2));
        }
        if self.below(8) == 0 {
            schema["maxProperties"] = json!(1 + self.below(3));
        }
        schema
    }

    fn array(&mut self, depth: usize) -> Value {
        let mut schema = json!({"type": "array", "items": self.schema(depth)});
        let least = self.below(3);
        schema["minItems"] = least.into();
        if self.below(3) > 0 {
            schema["maxItems"] = (least + self.below(3)).into();
        }
        schema
    }

    fn tuple(&mut self, depth: usize) -> Value {
        let list: Vec<Value> = (0..1 + self.below(3)).map(|_| self.schema(depth)).collect();
        let mut schema = json!({"type": "array", "prefixItems": list});
        match self.below(3) {
            0 => schema["items"] = json!(false),
            1 => schema["items"] = self.schema(0),
            _ => {}
        }
        if self.below(2) == 0 {
            schema["minItems"] = self.below(3).into();
        }
        schema
    }

    fn map(&mut self, depth: usize) -> Value {
        match self.below(3) {
            0 => json!({"type": "object", "additionalProperties": self.schema(depth)}),
            1 => json!({
                "type": "object",
                "patternProperties": {"^x_": self.schema(depth), "^[0-9]+$": self.schema(0)},
                "additionalProperties": self.below(2) == 0,
            }),
            _ => json!({
                "type": "object",
                "propertyNames": {"pattern": "^[a-z]{1,3}$"},
                "additionalProperties": self.schema(depth),
                "maxProperties": 2,
            }),
        }
    }

    fn one_of(&mut self, depth: usize) -> Value {
        let side = |maker: &mut Self, tag: &str| {
            json!({
                "type": "object",
                "properties": {"type": {"const": tag}, "v": maker.schema(depth)},
                "required": ["type", "v"],
            })
        };
        if self.below(3) == 0 {
            return json!({"oneOf": [self.schema(depth), self.schema(depth)]});
        }
        let (first, second) = (side(self, "p"), side(self, "q"));
        json!({"oneOf": [first, second, {"type": "null"}]})
    }

    fn mixed(&mut self, depth: usize) -> Value {
        let mut schema = self.object(depth);
        schema["anyOf"] = json!([{"required": ["a"]}, {"properties": {"b": self.schema(0)}}]);
        if self.below(2) == 0 {
            schema["description"] = json!("words");
            schema["x-own"] = json!([1]);
        }
        schema
    }
}

/// A text drawn from masks; `None` where it did not end in time.
fn draw(
    grammar: &Grammar,
    tokens: &[Vec<u8>],
    vocabulary: &Vocabulary,
    draws: &mut Draws,
) -> Result<Option<String>, String> {
    let mut matcher = grammar.start();
    let mut bits = vec![0; vocabulary.words()];
    let mut text: Vec<u8> = Vec::new();
    for step in 0..LONGEST {
        let stuck = |e| format!("stuck after {:?}: {e}", String::from_utf8_lossy(&text));
        matcher.mask(&mut bits).map_err(stuck)?;
        let all = allowed(&bits);
        let closes =
            |id: &u32| *id != END && tokens[*id as usize].iter().all(|b| b"\"]},".contains(b));
        let closers: Vec<u32> = all.iter().copied().filter(closes).collect();
        // Exponents soon leave the range of a double.
        let plain = |id: &u32| !tokens[*id as usize].iter().all(|b| b"eE".contains(b));
        let plain: Vec<u32> = all.iter().copied().filter(plain).collect();
        let is_long = step > LONG;
        let id = if all.contains(&END) && (is_long || draws.below(2) == 0) {
            END
        } else if !closers.is_empty() && (is_long || draws.below(4) == 0) {
            closers[draws.below(closers.len())]
        } else {
            let list = if plain.is_empty() { &all } else { &plain };
            list[draws.below(list.len())]
        };
        matcher.accept(id).map_err(|e| format!("a token of the mask: {e}"))?;
        if id == END {
            assert!(matcher.is_done());
            return String::from_utf8(text).map(Some).map_err(|e| e.to_string());
        }
        text.extend(&tokens[id as usize]);
    }
    Ok(None)
}

#[test]
fn documents_drawn_from_masks_are_valid() {
    let byte_tokens = piece_bytes(257);
    let piece_tokens = piece_bytes(4000);
    let vocabularies: Vec<(Arc<Vocabulary>, &[Vec<u8>])> =
        vec![(bytes::bytes(), &byte_tokens), (bytes::pieces(4000), &piece_tokens)];
    let mut maker = Maker { draws: Draws(20_261_128), defs: 0 };
    let mut refused: BTreeMap<String, usize> = BTreeMap::new();
    let (mut enforced, mut documents, mut cut, mut invalid) = (0, 0, 0, Vec::new());
    while enforced < SCHEMAS {
        let schema = maker.document();
        let (vocabulary, tokens) = &vocabularies[enforced % 2];
        let constraint = Constraint::JsonSchema(schema.clone());
        let grammar = match compile(&constraint, vocabulary, &Settings::default()) {
            Ok(grammar) => grammar,
            Err(e) => {
                let name = match &e {
                    Refused::Keyword { keyword, .. } => keyword.clone(),
                    Refused::Unsatisfiable { .. } => "unsatisfiable".to_owned(),
                    Refused::Complex { .. } => "complex".to_owned(),
                    Refused::Bound { what, .. } => (*what).to_owned(),
                    other => panic!("{other}: {schema}"),
                };
                *refused.entry(name).or_default() += 1;
                continue;
            }
        };
        enforced += 1;
        let validator = jsonschema::options().should_validate_formats(true).build(&schema);
        let validator = validator.unwrap_or_else(|e| panic!("{e}: {schema}"));
        for _ in 0..DOCUMENTS {
            match draw(&grammar, tokens, vocabulary, &mut maker.draws) {
                Ok(Some(text)) => {
                    documents += 1;
                    let value: Result<Value, _> = serde_json::from_str(&text);
                    if !value.as_ref().is_ok_and(|v| validator.is_valid(v)) {
                        invalid.push(format!("{text}\n  under {schema}"));
                    }
                }
                Ok(None) => cut += 1,
                Err(why) => invalid.push(format!("{why}\n  under {schema}")),
            }
        }
    }
    println!("{enforced} schemas, {documents} documents, {cut} cut; refused: {refused:?}");
    assert!(
        invalid.is_empty(),
        "{}:\n{}",
        invalid.len(),
        invalid[..invalid.len().min(12)].join("\n")
    );
    assert!(documents > SCHEMAS * DOCUMENTS * 9 / 10);
}
