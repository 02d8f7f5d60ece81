//! Patterns that a string must match together, and `multipleOf`s that meet: their product is what
//! the compiler works through, in one step and without asking for fuel, so it is bounded before.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::values;
use crate::refused::{Refused, within};

/// Most bytes of patterns that meet, multiplied.
const PRODUCT: usize = 1_000_000;
/// Greatest product of `multipleOf`s that meet, in units of the finest: the compiler reckons in
/// 32 bits, unchecked, and has a state for each remainder.
const MULTIPLE: u64 = 2000;
/// Most combinations of schemas looked at.
const COMBINED: usize = 20_000;

/// Refuses a plain schema in which too much meets at one place of a value.
pub(super) fn check(root: &Value, defs: &Map<String, Value>) -> Result<(), Refused> {
    let mut meeting = Meeting { defs, seen: BTreeSet::new() };
    meeting.all(root)?;
    defs.values().try_for_each(|schema| meeting.all(schema))
}

struct Meeting<'a> {
    defs: &'a Map<String, Value>,
    /// Combinations looked at, by the addresses of their schemas.
    seen: BTreeSet<Vec<usize>>,
}

fn lists<'a>(map: &'a Map<String, Value>, key: &str) -> impl Iterator<Item = &'a Value> {
    map.get(key).and_then(Value::as_array).into_iter().flatten()
}

impl<'a> Meeting<'a> {
    /// Every schema of a document that combines others.
    fn all(&mut self, schema: &'a Value) -> Result<(), Refused> {
        let Value::Object(map) = schema else { return Ok(()) };
        self.meet(vec![schema])?;
        for key in ["allOf", "anyOf", "oneOf", "prefixItems"] {
            lists(map, key).try_for_each(|s| self.all(s))?;
        }
        for key in ["items", "additionalProperties"] {
            map.get(key).map_or(Ok(()), |s| self.all(s))?;
        }
        for key in ["properties", "patternProperties"] {
            let schemas = map.get(key).and_then(Value::as_object).into_iter();
            schemas.flat_map(Map::values).try_for_each(|s| self.all(s))?;
        }
        Ok(())
    }

    /// Schemas that hold for the same value.
    fn meet(&mut self, schemas: Vec<&'a Value>) -> Result<(), Refused> {
        let mut addresses: Vec<usize> =
            schemas.iter().map(|s| std::ptr::from_ref::<Value>(s) as usize).collect();
        addresses.sort_unstable();
        addresses.dedup();
        if !self.seen.insert(addresses) {
            return Ok(());
        }
        within("combinations of schemas in the schema", self.seen.len(), COMBINED)?;
        let product = schemas.iter().fold(1usize, |p, s| p.saturating_mul(self.product(s)));
        within("bytes of patterns that meet in one string, multiplied", product, PRODUCT)?;
        let (mut flat, mut known) = (Vec::new(), BTreeSet::new());
        schemas.into_iter().for_each(|s| self.flatten(s, &mut flat, &mut known));
        if flat.len() < 2 {
            return Ok(());
        }
        multiples(&flat)?;
        let mut others: Vec<&Value> = Vec::new();
        let mut named: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
        let mut items: Vec<&Value> = Vec::new();
        for map in &flat {
            for (name, schema) in
                map.get("properties").and_then(Value::as_object).into_iter().flatten()
            {
                named.entry(name).or_default().push(schema);
            }
            let patterns = map.get("patternProperties").and_then(Value::as_object).into_iter();
            others.extend(patterns.flat_map(Map::values));
            others.extend(map.get("additionalProperties"));
            items.extend(lists(map, "prefixItems").chain(map.get("items")));
        }
        others.retain(|s| s.is_object());
        items.retain(|s| s.is_object());
        for (_, mut group) in named {
            group.extend(&others);
            if group.len() > 1 {
                self.meet(group)?;
            }
        }
        for group in [others, items] {
            if group.len() > 1 {
                self.meet(group)?;
            }
        }
        Ok(())
    }

    fn target(&self, map: &Map<String, Value>) -> Option<&'a Value> {
        let name = map.get("$ref")?.as_str()?.strip_prefix("#/$defs/")?;
        self.defs.get(name)
    }

    /// The bytes of all patterns of a schema that can meet, multiplied.
    fn product(&self, schema: &'a Value) -> usize {
        let Value::Object(map) = schema else { return 1 };
        let own = map.get("pattern").and_then(Value::as_str).map_or(1, |p| p.len().max(1));
        let all = lists(map, "allOf").chain(self.target(map));
        let all = all.fold(own, |p, s| p.saturating_mul(self.product(s)));
        let most = |key| lists(map, key).map(|s| self.product(s)).max().unwrap_or(1);
        all.saturating_mul(most("anyOf")).saturating_mul(most("oneOf"))
    }

    /// Everything said of the same value.
    fn flatten(
        &self,
        schema: &'a Value,
        flat: &mut Vec<&'a Map<String, Value>>,
        known: &mut BTreeSet<usize>,
    ) {
        let Value::Object(map) = schema else { return };
        if !known.insert(std::ptr::from_ref(schema) as usize) {
            return;
        }
        flat.push(map);
        for key in ["allOf", "anyOf", "oneOf"] {
            lists(map, key).for_each(|s| self.flatten(s, flat, known));
        }
        if let Some(target) = self.target(map) {
            self.flatten(target, flat, known);
        }
    }
}

fn multiples(flat: &[&Map<String, Value>]) -> Result<(), Refused> {
    let found = flat.iter().filter_map(|map| map.get("multipleOf").and_then(values::decimal));
    let found: BTreeSet<(u64, u32)> = found.collect();
    if found.len() < 2 {
        return Ok(());
    }
    let finest = found.iter().map(|m| m.1).max().unwrap_or(0);
    let product = found.iter().try_fold(1u64, |product, (digits, own)| {
        let scaled = digits.checked_mul(10u64.checked_pow(finest - own)?)?;
        product.checked_mul(scaled).filter(|p| *p <= MULTIPLE)
    });
    if product.is_some() {
        return Ok(());
    }
    let (why, list) = ("several that meet, too great together", found.iter().map(|m| m.0));
    Err(Refused::keyword("multipleOf", "", &list.collect(), why))
}
