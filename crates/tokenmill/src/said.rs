//! Options by their names in JSON, as programs in other languages say them. A name that there is not is an error.

use serde::Deserialize;
use serde_json::Value;
use tokenmill_ir::{KvFormat, Mode, SamplingValues};

use crate::device::Device;
use crate::error::Error;
use crate::model::Options;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Opening {
    context: Option<u32>,
    threads: Option<usize>,
    memory_bytes: Option<u64>,
    device: Option<DeviceName>,
    parallel: Option<u32>,
    queue: Option<u32>,
    kv: Option<KvName>,
    mode: Option<ModeName>,
    fetch: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum DeviceName {
    Cpu,
    Cuda,
    Reference,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum KvName {
    F32,
    Bf16,
    Int16,
    Int8,
    Int4,
    K8v4,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum ModeName {
    Int8,
    Bf16,
    F32,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Said {
    temperature: Option<f32>,
    top_k: Option<u32>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    typical_p: Option<f32>,
    top_n_sigma: Option<f32>,
    repeat_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    repeat_last_n: Option<u32>,
    bad_words: Option<Vec<String>>,
    min_tokens: Option<u32>,
    seed: Option<u64>,
    max_tokens: Option<u32>,
    stop: Option<Vec<String>>,
}

fn read<T: for<'de> Deserialize<'de>>(what: &'static str, value: Value) -> Result<T, Error> {
    let bad = |error: serde_json::Error| Error::Option { what, reason: error.to_string() };
    serde_json::from_value(value).map_err(bad)
}

/// How a model is opened, by the names of the members of [`Options`].
///
/// # Errors
/// [`Error::Option`].
pub fn options_of(value: Value) -> Result<Options, Error> {
    let said: Opening = read("options", value)?;
    let usual = Options::default();
    Ok(Options {
        context: said.context,
        threads: said.threads,
        memory_bytes: said.memory_bytes,
        device: said.device.map_or(usual.device, |device| match device {
            DeviceName::Cpu => Device::Cpu,
            DeviceName::Cuda => Device::Cuda,
            DeviceName::Reference => Device::Reference,
        }),
        parallel: said.parallel.unwrap_or(usual.parallel),
        queue: said.queue.unwrap_or(usual.queue),
        kv: said.kv.map(|kv| match kv {
            KvName::F32 => KvFormat::F32,
            KvName::Bf16 => KvFormat::Bf16,
            KvName::Int16 => KvFormat::Int16,
            KvName::Int8 => KvFormat::Int8,
            KvName::Int4 => KvFormat::Int4,
            KvName::K8v4 => KvFormat::K8V4,
        }),
        mode: said.mode.map_or(usual.mode, |mode| match mode {
            ModeName::Int8 => Mode::Int8,
            ModeName::Bf16 => Mode::Bf16,
            ModeName::F32 => Mode::F32,
        }),
        fetch: said.fetch.unwrap_or(usual.fetch),
    })
}

/// How answers are sampled, by the names of the members of [`Sampling`](crate::Sampling): the usual ones.
///
/// # Errors
/// [`Error::Option`].
pub fn sampling_of(value: Value) -> Result<SamplingValues, Error> {
    let said: Said = read("sampling", value)?;
    Ok(SamplingValues {
        temperature: said.temperature,
        top_k: said.top_k,
        top_p: said.top_p,
        min_p: said.min_p,
        typical_p: said.typical_p,
        top_n_sigma: said.top_n_sigma,
        repeat_penalty: said.repeat_penalty,
        presence_penalty: said.presence_penalty,
        frequency_penalty: said.frequency_penalty,
        repeat_last_n: said.repeat_last_n,
        bad_words: said.bad_words,
        min_tokens: said.min_tokens,
        seed: said.seed,
        max_tokens: said.max_tokens,
        stop: said.stop,
        ..SamplingValues::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_that_there_are_not_are_errors() {
        let options = json!({"context": 9, "kv": "k8v4", "device": "reference", "fetch": false});
        let read = options_of(options).unwrap();
        let expect = Options {
            context: Some(9),
            kv: Some(KvFormat::K8V4),
            device: Device::Reference,
            fetch: false,
            ..Options::default()
        };
        assert_eq!(read, expect);
        assert_eq!(options_of(json!({})).unwrap(), Options::default());
        let sampling = sampling_of(json!({"seed": 3, "stop": ["a"], "temperature": 0.5})).unwrap();
        assert_eq!((sampling.seed, sampling.temperature), (Some(3), Some(0.5)));
        for (wrong, told) in [
            (json!({"ctx": 9}), "options: unknown field `ctx`"),
            (json!({"context": -1}), "options: invalid value"),
            (json!({"device": "tpu"}), "options: unknown variant `tpu`"),
        ] {
            let error = options_of(wrong).unwrap_err().to_string();
            assert!(error.starts_with(told), "{error}");
        }
        assert!(sampling_of(json!({"temp": 1})).is_err());
    }
}
