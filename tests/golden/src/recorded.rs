//! `sweep.json`: changed configurations and what transformers computes for them.

use serde::Deserialize;
use serde_json::Value;

use crate::model::Golden;

/// Largest difference of a logit or hidden number from the recording, and of those above 1 in
/// proportion. Rounding of the recording is half of 1e-4.
const TOLERANCE: f32 = 3e-4;

/// One change of one file, and what transformers makes of it.
#[derive(Deserialize)]
pub struct Change {
    /// Keys (dotted in maps) that get a value.
    #[serde(default)]
    pub put: serde_json::Map<String, Value>,
    /// Keys that are taken out.
    #[serde(default)]
    pub drop: Vec<String>,
    /// `"same"`; `"refuse"` where tensors would be missing, left over or of other shapes;
    /// `"error …"` where it refuses too; `"crash …"` where its code fails, and nothing is demanded;
    /// or numbers: `[row, column, number]` where the outputs differ most from those of
    /// the file as it is, then one at each place of `at`.
    pub is: Value,
}

/// What `sweep.json` holds.
#[derive(Deserialize)]
pub struct Sweep {
    /// Rows and columns of the outputs that are kept.
    pub at: Vec<(usize, usize)>,
    /// Changes of `config.json`.
    #[serde(rename = "config.json")]
    pub config: Vec<Change>,
    /// Changes of `config.v5.json`.
    #[serde(rename = "config.v5.json")]
    pub newer: Vec<Change>,
}

impl Sweep {
    /// The recording of a family, if it has one.
    pub fn read(golden: &Golden) -> Option<Self> {
        let text = golden.text("sweep.json")?;
        Some(serde_json::from_str(&text).expect("sweep.json"))
    }
}

impl Change {
    /// The recorded numbers with their rows and columns.
    pub fn places(&self, at: &[(usize, usize)]) -> Vec<(usize, usize, f32)> {
        let list = self.is.as_array().expect("a list");
        let number = |v: &Value| v.as_f64().expect("a number") as f32;
        let worst = list[0].as_array().expect("a place");
        let index = |v: &Value| v.as_u64().expect("an index") as usize;
        let mut all = vec![(index(&worst[0]), index(&worst[1]), number(&worst[2]))];
        all.extend(at.iter().zip(&list[1..]).map(|(&(r, c), v)| (r, c, number(v))));
        all
    }
}

/// Whether a number is not the recorded one.
pub fn differs(found: f32, recorded: f32) -> bool {
    (found - recorded).abs() > TOLERANCE * recorded.abs().max(1.0) || !found.is_finite()
}
