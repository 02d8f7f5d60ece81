//! A machine as data: read from a file of JSON, or gathered by `cli`.

use serde::{Deserialize, Deserializer, Serialize};

use super::factors::{self, Arithmetic, Instructions};

/// Memory that the system keeps of what is installed, where a description does not say what is free.
const SYSTEM_BYTES: u64 = 1 << 30;
/// Memory of a GPU that its driver keeps.
const DRIVER_BYTES: u64 = 512 << 20;

/// A machine. Bytes are numbers or texts such as `"16G"` (1024³).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// For people.
    pub name: String,
    /// Operating system and architecture, such as `linux x86_64`.
    #[serde(default = "linux")]
    pub system: String,
    /// Cores that may be used.
    pub cores: u32,
    /// The best kernels it can run.
    pub instructions: Instructions,
    /// Memory installed, bytes.
    #[serde(deserialize_with = "bytes")]
    pub memory: u64,
    /// Memory a model may take, bytes; absent: all but what the system keeps.
    #[serde(default, deserialize_with = "some_bytes", skip_serializing_if = "Option::is_none")]
    pub available: Option<u64>,
    /// What it can do at most; figures that are absent are assumed.
    #[serde(default)]
    pub limits: Limits,
    /// The disk that models lie on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<Disk>,
    /// Its GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<Gpu>,
    /// Other machines that could take part.
    #[serde(default)]
    pub peers: u32,
}

fn linux() -> String {
    "linux x86_64".to_owned()
}

/// Ceilings, all cores together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Reads from main memory, GB/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_gb_s: Option<f64>,
    /// 10¹² operations a second (2 a multiply-add) on bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub int8_tops: Option<f64>,
    /// On bfloat16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bf16_tops: Option<f64>,
    /// On 32-bit floats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub f32_tops: Option<f64>,
}

/// A disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Disk {
    /// Room for models, bytes.
    #[serde(deserialize_with = "bytes")]
    pub free: u64,
    /// Sequential reads, GB/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_gb_s: Option<f64>,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// Its name.
    pub name: String,
    /// Its memory, bytes.
    #[serde(deserialize_with = "bytes")]
    pub memory: u64,
}

impl Gpu {
    /// What a model may take of it, bytes.
    pub fn room(&self) -> u64 {
        self.memory.saturating_sub(DRIVER_BYTES)
    }
}

/// Ceilings of which each is known or assumed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ceilings {
    /// Bytes a second.
    pub read: f64,
    /// Operations a second, by [`Arithmetic`].
    pub ops: [f64; 3],
    /// Whether one of them is assumed.
    pub assumed: bool,
}

impl Machine {
    /// Memory that models may take, bytes.
    pub fn room(&self) -> u64 {
        self.available.unwrap_or(self.memory.saturating_sub(SYSTEM_BYTES))
    }

    /// Its ceilings; what is not told is assumed by its instruction set and cores.
    pub fn ceilings(&self) -> Ceilings {
        let Limits { read_gb_s, int8_tops, bf16_tops, f32_tops } = self.limits;
        let usual = factors::assumed(self.instructions);
        let told = [int8_tops, bf16_tops, f32_tops];
        let of = |a: Arithmetic| {
            let known = told[a as usize].map(|tops| tops * 1e12);
            known.unwrap_or(usual.ops_a_core[a as usize] * f64::from(self.cores))
        };
        Ceilings {
            read: read_gb_s.map_or(factors::ASSUMED_READ, |gb| gb * 1e9),
            ops: Arithmetic::ALL.map(of),
            assumed: read_gb_s.is_none() || told.iter().any(Option::is_none),
        }
    }
}

/// Bytes as a number, or a text with a unit of 1024ⁿ.
fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Size {
        Number(u64),
        Text(String),
    }
    match Size::deserialize(from)? {
        Size::Number(n) => Ok(n),
        Size::Text(text) => parse_bytes(&text).ok_or_else(|| {
            serde::de::Error::custom(format!("{text:?} is no size in bytes, such as \"16G\""))
        }),
    }
}

fn some_bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    bytes(from).map(Some)
}

fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let power = match &text[digits.len()..] {
        "" | "B" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        _ => return None,
    };
    let number = digits.trim().parse::<f64>().ok().filter(|n| (0.0..1e15).contains(n))?;
    Some((number * (1u64 << power) as f64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, expect) in [
            ("16G", Some(16 << 30)),
            ("1.5GiB", Some(3 << 29)),
            ("512M", Some(512 << 20)),
            ("7", Some(7)),
            ("16 GB", None),
            ("much", None),
            ("-1G", None),
            ("", None),
        ] {
            assert_eq!(parse_bytes(text), expect, "{text}");
        }
    }

    #[test]
    fn what_is_not_told_is_assumed_and_said() {
        let text = r#"{"name": "a", "cores": 4, "instructions": "avx2", "memory": "16G"}"#;
        let mut machine: Machine = serde_json::from_str(text).unwrap();
        assert_eq!(machine.room(), 15 << 30);
        assert!(machine.ceilings().assumed);
        machine.limits = Limits {
            read_gb_s: Some(40.0),
            int8_tops: Some(0.5),
            bf16_tops: Some(0.2),
            f32_tops: Some(0.2),
        };
        let told = machine.ceilings();
        assert_eq!((told.read, told.ops, told.assumed), (4e10, [5e11, 2e11, 2e11], false));
        let typo = text.replace("cores", "core");
        assert!(serde_json::from_str::<Machine>(&typo).is_err());
    }
}
