//! `options` of a request, and the parameters of a model that is created: one table.

use serde_json::Value;
use tokenmill_engine::SamplingValues;

use crate::config::Limits;
use crate::error::ApiError;
use crate::fields::{Fields, Notes, Unsupported};
use crate::openai::{parameters, samplers};

/// About how another program uses its machine, or about guesses: no answer depends on them.
const MACHINE: &[&str] = &[
    "draft_num_predict",
    "embedding_only",
    "f16_kv",
    "logits_all",
    "low_vram",
    "main_gpu",
    "num_batch",
    "num_gpu",
    "num_gqa",
    "num_thread",
    "numa",
    "use_mlock",
    "use_mmap",
    "vocab_only",
];

/// Of what never happens here: a context that is full is not shifted.
const WITHOUT: &[&str] = &["num_keep"];

/// Samplers that are not built: refused unless they ask for nothing. One that is built goes from here
/// into [`read`].
const UNBUILT: &[Unsupported] = &[
    Unsupported { name: "penalize_newline", neutral: |v| *v == true },
    Unsupported { name: "tfs_z", neutral: |v| is(v, 1.0) || is(v, 0.0) },
];

/// How many of the last tokens penalties look at where nobody says it. Those of the prompt count too.
const WINDOW: u32 = 64;

fn is(value: &Value, number: f64) -> bool {
    value.as_f64() == Some(number)
}

/// What they say.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Said {
    /// Of how to sample.
    pub sampling: SamplingValues,
    /// Most tokens of prompt and answer together.
    pub context: Option<u32>,
}

/// Those of a request.
///
/// # Errors
/// 400 naming the first that is wrong.
pub fn of(fields: &mut Fields, limits: &Limits, notes: &mut Notes) -> Result<Said, ApiError> {
    match fields.take("options") {
        None => Ok(Said::default()),
        Some(value) => read(Fields::of(value, "options")?, limits, notes),
    }
}

/// Reads all of them.
///
/// # Errors
/// 400 naming the first that is wrong.
pub fn read(mut fields: Fields, limits: &Limits, notes: &mut Notes) -> Result<Said, ApiError> {
    let mut sampling = SamplingValues {
        temperature: fields.number("temperature", 0.0..=2.0)?,
        top_p: fields.number("top_p", 0.0..=1.0)?.map(|p| p.max(f32::MIN_POSITIVE)),
        top_k: parameters::top_k(&mut fields)?,
        min_p: fields.number("min_p", 0.0..=1.0)?,
        repeat_penalty: fields.number("repeat_penalty", 0.01..=10.0)?,
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?,
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?,
        seed: seed(&mut fields)?,
        max_tokens: most_tokens(&mut fields)?,
        typical_p: fields.number("typical_p", 0.0..=1.0)?.filter(|p| *p > 0.0),
        mirostat: samplers::mirostat(&mut fields)?,
        mirostat_tau: fields.number("mirostat_tau", 0.0..=100.0)?,
        mirostat_eta: fields.number("mirostat_eta", 0.0..=10.0)?,
        repeat_last_n: samplers::last_n(&mut fields, "repeat_last_n")?,
        stop: parameters::stop(&mut fields, "stop", limits)?,
        ..SamplingValues::default()
    };
    let context = fields.count("num_ctx", 1..=u32::MAX)?;
    for name in MACHINE.iter().chain(WITHOUT) {
        fields.take(name);
    }
    let penalties = [
        sampling.repeat_penalty.filter(|p| *p != 1.0),
        sampling.presence_penalty.filter(|p| *p != 0.0),
        sampling.frequency_penalty.filter(|p| *p != 0.0),
    ];
    if penalties.iter().any(Option::is_some) {
        sampling.repeat_last_n.get_or_insert(WINDOW);
        sampling.penalise_prompt = Some(true);
    }
    fields.refuse(UNBUILT)?;
    fields.finish(&[], notes)?;
    Ok(Said { sampling, context })
}

/// -1 is "another one each time", which is what none is.
fn seed(fields: &mut Fields) -> Result<Option<u64>, ApiError> {
    if fields.get("seed").and_then(Value::as_i64) == Some(-1) {
        fields.take("seed");
    }
    parameters::seed(fields)
}

/// 0, -1 and -2 are as many as the context holds.
fn most_tokens(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let found = fields.integer("num_predict", -2..=i64::from(u32::MAX))?;
    Ok(found.map(|n| u32::try_from(n).ok().filter(|n| *n > 0).unwrap_or(u32::MAX)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn said(value: Value) -> Result<(Said, Vec<String>), ApiError> {
        let mut notes = Notes::new(false);
        let fields = Fields::of(value, "options")?;
        read(fields, &Limits::default(), &mut notes).map(|said| (said, notes.into_list()))
    }

    #[test]
    fn options_mean_what_ollama_means() {
        let (found, notes) = said(json!({
            "temperature": 0.5, "top_k": -1, "seed": -1, "num_predict": -1, "stop": "x",
            "num_ctx": 100, "num_thread": 8, "use_mmap": false, "num_keep": 4, "x": 1,
        }))
        .expect("read");
        let expect = SamplingValues {
            temperature: Some(0.5),
            top_k: Some(0),
            max_tokens: Some(u32::MAX),
            stop: Some(vec!["x".into()]),
            ..SamplingValues::default()
        };
        assert_eq!((found.sampling, found.context), (expect, Some(100)));
        assert_eq!(notes, ["options.x was ignored: it is not a field of this request"]);
        let penalised = |body| {
            let s = said(body).expect("read").0.sampling;
            (s.repeat_last_n, s.penalise_prompt)
        };
        assert_eq!(penalised(json!({ "repeat_penalty": 1.2 })), (Some(64), Some(true)));
        let all = json!({ "repeat_last_n": -1, "presence_penalty": 1 });
        assert_eq!(penalised(all), (Some(u32::MAX), Some(true)));
        assert_eq!(penalised(json!({ "repeat_penalty": 1 })), (None, None));
        assert_eq!(said(json!({ "seed": 7, "num_predict": 3 })).unwrap().0.sampling.seed, Some(7));
    }

    #[test]
    fn samplers_that_are_not_built_are_refused_where_they_would_act() {
        for (good, bad) in [
            (json!({ "mirostat": 0, "mirostat_tau": 5.0 }), json!({ "mirostat": 1 })),
            (json!({ "tfs_z": 1 }), json!({ "tfs_z": 0.5 })),
            (json!({ "penalize_newline": true }), json!({ "penalize_newline": false })),
        ] {
            assert!(said(good.clone()).is_ok(), "{good}");
            let error = said(bad.clone()).expect_err("refused");
            assert_eq!((error.code, error.status.as_u16()), (Some("unsupported"), 400), "{bad}");
        }
        assert!(said(json!("none")).is_err());
        assert!(said(json!({ "temperature": "warm" })).is_err());
    }
}
