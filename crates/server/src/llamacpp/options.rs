//! How a completion is made, by llama.cpp's names.

use serde_json::{Value, json};
use tokenmill_engine::SamplingValues;
use tokenmill_ir::TokenId;

use super::answer::Form;
use crate::ask::Manner;
use crate::config::Limits;
use crate::error::ApiError;
use crate::fields::{Fields, Ignored, Notes, Unsupported, list, number, text, wrong};
use crate::openai::parameters::{self, is_empty_list};
use crate::openai::{constraint, samplers};

/// Nothing in a completion is told apart.
const TEXT: &str = "a completion is all text";

/// Members that change no answer here, or only when it is told.
const IGNORED: &[Ignored] = &[
    Ignored { name: "cache_prompt", because: "a cached prompt gives the same bytes" },
    Ignored { name: "id_slot", because: "any place does: all requests share one cache" },
    Ignored { name: "n_indent", because: "an answer ends by its tokens, texts and lengths alone" },
    Ignored { name: "chat_format", because: TEXT },
    Ignored { name: "chat_parser", because: TEXT },
    Ignored { name: "continue_final_message", because: TEXT },
    Ignored { name: "generation_prompt", because: TEXT },
    Ignored { name: "parse_tool_calls", because: TEXT },
    Ignored { name: "reasoning_budget_end_tag", because: TEXT },
    Ignored { name: "reasoning_budget_end_tags", because: TEXT },
    Ignored { name: "reasoning_budget_message", because: TEXT },
    Ignored { name: "reasoning_budget_start_tag", because: TEXT },
    Ignored { name: "reasoning_control", because: TEXT },
    Ignored { name: "reasoning_format", because: TEXT },
    Ignored { name: "return_progress", because: "a stream begins with the answer" },
    Ignored { name: "sse_ping_interval", because: "the server has one for all" },
    Ignored { name: "t_max_predict_ms", because: "no answer depends on how fast it came" },
    Ignored { name: "t_max_prompt_ms", because: "no answer depends on how fast it came" },
    Ignored { name: "timings_per_token", because: "timings come with the end" },
    Ignored { name: "verbose", because: "all that is told of an answer is told anyway" },
];

/// Whether a value asks for nothing.
type IsQuiet = fn(&Value) -> bool;

/// What of these asks for nothing, or for what is done anyway.
const QUIET: &[(&str, IsQuiet)] = &[
    ("cache_prompt", |v| *v == true),
    ("id_slot", |v| *v == -1),
    ("n_indent", |v| *v == 0),
    ("return_progress", |v| *v == false),
    ("t_max_predict_ms", |v| *v == 0 || *v == -1),
    ("t_max_prompt_ms", |v| *v == 0 || *v == -1),
    ("timings_per_token", |v| *v == false),
    ("verbose", |v| *v == false),
];

/// Of what never happens here (a full context is not shifted), or of guesses, which change no answer.
const WITHOUT: &[&str] = &[
    "adaptive_decay",
    "backend_sampling",
    "n_cache_reuse",
    "n_discard",
    "n_keep",
    "speculative.n_max",
    "speculative.n_min",
    "speculative.p_min",
    "speculative.type",
    "speculative.types",
];

/// Members that ask for what is not built, unless they ask for nothing.
const UNBUILT: &[Unsupported] = &[
    Unsupported { name: "adaptive_target", neutral: |v| v.as_f64().is_some_and(|n| n < 0.0) },
    Unsupported { name: "echo", neutral: |v| *v == false },
    Unsupported { name: "grammar_lazy", neutral: |v| *v == false },
    Unsupported { name: "grammar_triggers", neutral: is_empty_list },
    Unsupported { name: "lora", neutral: is_empty_list },
    Unsupported { name: "min_keep", neutral: |v| *v == 0 },
    Unsupported { name: "post_sampling_probs", neutral: |v| *v == false },
    Unsupported { name: "preserved_tokens", neutral: is_empty_list },
    Unsupported { name: "reasoning_budget_tokens", neutral: |v| *v == -1 },
];

/// How many of the last tokens penalties look at where nobody says it. Those of the prompt count too.
const WINDOW: u32 = 64;

/// The seed that stands for none, of 32 bits.
const RANDOM: u64 = u32::MAX as u64;

/// Samplers by letter, as llama.cpp's string of them has it (`common/sampling.cpp`).
const LETTERS: &[(char, &str)] = &[
    ('d', "dry"),
    ('k', "top_k"),
    ('y', "typ_p"),
    ('p', "top_p"),
    ('s', "top_n_sigma"),
    ('m', "min_p"),
    ('t', "temperature"),
    ('x', "xtc"),
    ('e', "penalties"),
    ('i', INFILL),
];

/// A sampler of llama.cpp that is none here: it makes ends of fills likelier.
const INFILL: &str = "infill";

/// Reads them.
///
/// # Errors
/// 400 naming the first that is wrong.
pub fn read(
    fields: &mut Fields,
    limits: &Limits,
    notes: &mut Notes,
) -> Result<(Manner, Form), ApiError> {
    let mut sampling = values(fields, limits, notes)?;
    let reads_only = sampling.max_tokens == Some(0);
    if reads_only {
        // The prompt is computed, as with a token that nobody sees.
        sampling.max_tokens = Some(1);
    }
    let ignore_eos = fields.flag("ignore_eos")?.unwrap_or(false);
    if ignore_eos {
        sampling.min_tokens = Some(u32::MAX);
    }
    let n_probs = n_probs(fields, limits)?;
    let Biases { tokens: logit_bias, texts: biased_texts } = biases(fields, limits)?;
    let grammar = fields.get("grammar").cloned().unwrap_or_else(|| "".into());
    let choices = fields.count("n", 1..=limits.choices)?;
    let manner = Manner {
        sampling,
        logprobs: Some(n_probs).filter(|n| *n > 0),
        choices: fields.count("n_cmpl", 1..=limits.choices)?.or(choices).unwrap_or(1),
        ignore_eos,
        also_end: samplers::stop_token_ids(fields, limits)?,
        logit_bias,
        biased_texts,
        constrained: constraint::read(fields, limits, notes)?,
        timeout: parameters::timeout(fields)?,
        tells_prompts: true,
        ..Manner::default()
    };
    let stream = fields.flag("stream")?.unwrap_or(false);
    let form = Form {
        stream,
        reads_only,
        with_tokens: fields.flag("return_tokens")?.unwrap_or(false),
        fields: response_fields(fields)?,
        asked: json!({
            "ignore_eos": ignore_eos,
            "stream": stream,
            "logit_bias": told_biases(&manner),
            "n_probs": n_probs,
            "grammar": grammar,
        }),
    };
    Ok((manner, form))
}

/// Ends the reading of a request.
///
/// # Errors
/// 400 naming what is not built, or where the server is strict, what nobody knows.
pub fn finish(mut fields: Fields, notes: &mut Notes) -> Result<(), ApiError> {
    for (name, asks_nothing) in QUIET {
        if fields.get(name).is_some_and(asks_nothing) {
            fields.take(name);
        }
    }
    for name in WITHOUT {
        fields.take(name);
    }
    fields.refuse(UNBUILT)?;
    // (Usage is told of every answer.)
    if let Some(options) = fields.take("stream_options") {
        let mut options = Fields::of(options, "stream_options")?;
        options.flag("include_usage")?;
        options.finish(&[], notes)?;
    }
    fields.finish(IGNORED, notes)
}

/// What the request says of how to sample.
fn values(
    fields: &mut Fields,
    limits: &Limits,
    notes: &mut Notes,
) -> Result<SamplingValues, ApiError> {
    let stop = without_empty(fields.take("stop"));
    stop.into_iter().for_each(|stop| fields.put("stop", stop));
    samplers_by_name(fields, notes);
    let mut sampling = SamplingValues {
        // Below zero is greedy, as zero is.
        temperature: fields.number("temperature", -100.0..=100.0)?.map(|t| t.max(0.0)),
        top_k: parameters::top_k(fields)?,
        top_p: fields.number("top_p", 0.0..=1.0)?.map(|p| p.max(f32::MIN_POSITIVE)),
        min_p: fields.number("min_p", 0.0..=1.0)?,
        repeat_penalty: fields.number("repeat_penalty", 0.01..=10.0)?,
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?,
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?,
        seed: seed(fields)?,
        max_tokens: most_tokens(fields)?,
        stop: parameters::stop(fields, "stop", limits)?,
        ..SamplingValues::default()
    };
    samplers::read(fields, &mut sampling)?;
    let penalties = [
        sampling.repeat_penalty.filter(|p| *p != 1.0),
        sampling.presence_penalty.filter(|p| *p != 0.0),
        sampling.frequency_penalty.filter(|p| *p != 0.0),
    ];
    if penalties.iter().any(Option::is_some) {
        sampling.repeat_last_n.get_or_insert(WINDOW);
        sampling.penalise_prompt = Some(true);
    }
    Ok(sampling)
}

/// Texts that end an answer, without those that are none.
fn without_empty(stop: Option<Value>) -> Option<Value> {
    let is_text = |value: &Value| *value != "";
    match stop? {
        Value::Array(items) => Some(items.into_iter().filter(is_text).collect()),
        other => Some(other).filter(is_text),
    }
}

/// -1 is "another one each time", which is what none is.
fn seed(fields: &mut Fields) -> Result<Option<u64>, ApiError> {
    let asked = fields.get("seed");
    let is_none = |value: &Value| value.as_i64() == Some(-1) || value.as_u64() == Some(RANDOM);
    if asked.is_some_and(is_none) {
        fields.take("seed");
    }
    parameters::seed(fields)
}

/// By the first of three names; -1 and -2: as many as the context holds.
fn most_tokens(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let mut found = None;
    for name in ["n_predict", "max_completion_tokens", "max_tokens"] {
        let one = fields.integer(name, -2..=i64::from(u32::MAX))?;
        found = found.or(one);
    }
    Ok(found.map(|n| u32::try_from(n).unwrap_or(u32::MAX)))
}

/// Alternatives at each token; 0: none, and no probabilities.
fn n_probs(fields: &mut Fields, limits: &Limits) -> Result<u32, ApiError> {
    let other = fields.count("logprobs", 0..=limits.top_logprobs)?;
    let found = fields.count("n_probs", 0..=limits.top_logprobs)?.or(other).unwrap_or(0);
    if found == 0 {
        fields.take("post_sampling_probs"); // (of which there are none)
    }
    Ok(found)
}

/// Letters become names, and the sampler that is none here is told of.
fn samplers_by_name(fields: &mut Fields, notes: &mut Notes) {
    const NAME: &str = "samplers";
    let letter = |c: char| LETTERS.iter().find(|(letter, _)| *letter == c).map(|(_, name)| *name);
    let names = match fields.take(NAME) {
        None => return,
        Some(Value::String(text))
            if !text.is_empty() && text.chars().all(|c| letter(c).is_some()) =>
        {
            text.chars().filter_map(letter).map(Value::from).collect()
        }
        Some(Value::Array(items)) => items,
        Some(other) => return fields.put(NAME, other),
    };
    let (infill, names): (Vec<Value>, Vec<Value>) =
        names.into_iter().partition(|name| *name == INFILL);
    if !infill.is_empty() {
        notes.add(format!("{NAME}: {INFILL} was ignored: ends of fills are as likely as others"));
    }
    fields.put(NAME, names.into());
}

/// What is added to logits.
struct Biases {
    tokens: Vec<(TokenId, f32)>,
    texts: Vec<(String, f32)>,
}

/// `logit_bias`: a list of pairs, or an object; of tokens or texts; numbers, or false for never.
fn biases(fields: &mut Fields, limits: &Limits) -> Result<Biases, ApiError> {
    const NAME: &str = "logit_bias";
    let mut found = Biases { tokens: Vec::new(), texts: Vec::new() };
    let pairs: Vec<(Value, Value)> = match fields.take(NAME) {
        None => return Ok(found),
        Some(Value::Object(members)) => {
            members.into_iter().map(|(key, bias)| (key.into(), bias)).collect()
        }
        Some(value) => {
            let pair = |(i, item): (usize, Value)| match item {
                Value::Array(pair) => match <[Value; 2]>::try_from(pair) {
                    Ok([what, bias]) => Ok((what, bias)),
                    Err(other) => Err(wrong(&format!("{NAME}[{i}]"), PAIR, &other.into())),
                },
                other => Err(wrong(&format!("{NAME}[{i}]"), PAIR, &other)),
            };
            let items = list(value, limits.logit_bias, NAME)?.into_iter().enumerate();
            items.map(pair).collect::<Result<_, _>>()?
        }
    };
    if pairs.len() > limits.logit_bias {
        let (count, most) = (pairs.len(), limits.logit_bias);
        return Err(ApiError::bad(NAME, format!("{NAME} has {count} biases, the limit is {most}")));
    }
    for (i, (what, bias)) in pairs.into_iter().enumerate() {
        let path = format!("{NAME}[{i}]");
        let bias = match bias {
            Value::Null => continue,
            Value::Bool(false) => f32::NEG_INFINITY,
            other => number(&other, f64::from(f32::MIN)..=f64::from(f32::MAX), &path)?,
        };
        let id = what.as_u64().and_then(|id| TokenId::try_from(id).ok());
        match (id.or_else(|| what.as_str().and_then(|key| key.parse().ok())), what) {
            (Some(id), _) => found.tokens.push((id, bias)),
            (None, Value::String(_)) if found.texts.len() == MOST_TEXTS => {
                return Err(ApiError::bad(path, format!("{NAME} has over {MOST_TEXTS} texts")));
            }
            (None, what) => found.texts.push((text(what, &path)?, bias)),
        }
    }
    Ok(found)
}

const PAIR: &str = "a token id or a text, and a bias";
/// Texts of `logit_bias` at most.
const MOST_TEXTS: usize = 256;

/// As llama.cpp tells them; never is null, for JSON has no infinity.
fn told_biases(manner: &Manner) -> Value {
    let bias = |bias: f32| Some(bias).filter(|bias| bias.is_finite());
    let of_tokens =
        manner.logit_bias.iter().map(|(id, b)| json!({ "token": id, "bias": bias(*b) }));
    let of_texts = manner.biased_texts.iter().map(|(t, b)| json!({ "text": t, "bias": bias(*b) }));
    of_tokens.chain(of_texts).collect()
}

/// `response_fields`: paths with `/` between names.
fn response_fields(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    const NAME: &str = "response_fields";
    let Some(value) = fields.take(NAME) else { return Ok(Vec::new()) };
    let one = |(i, item)| text(item, &format!("{NAME}[{i}]"));
    list(value, 64, NAME)?.into_iter().enumerate().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(body: Value) -> Result<(Manner, Form, Vec<String>), ApiError> {
        let (mut fields, mut notes) = (Fields::of(body, "")?, Notes::new(false));
        let (manner, form) = read(&mut fields, &Limits::default(), &mut notes)?;
        finish(fields, &mut notes)?;
        Ok((manner, form, notes.into_list()))
    }

    #[test]
    fn biases_come_in_all_forms() {
        let never = f32::NEG_INFINITY;
        for (given, tokens, texts) in [
            (json!([[5, 1.5], [6, false]]), vec![(5, 1.5), (6, never)], vec![]),
            (json!([[" a", -1], ["7", 2]]), vec![(7, 2.0)], vec![(" a".to_owned(), -1.0)]),
            (json!({ "8": -100, "b": false }), vec![(8, -100.0)], vec![("b".to_owned(), never)]),
            (json!([]), vec![], vec![]),
        ] {
            let (manner, ..) = said(json!({ "logit_bias": given })).expect("read");
            assert_eq!((manner.logit_bias, manner.biased_texts), (tokens, texts), "{given}");
        }
        for bad in [json!([[1]]), json!([[1, true]]), json!([1]), json!([[[], 1]]), json!("x")] {
            let error = said(json!({ "logit_bias": bad })).expect_err("refused");
            assert!(error.param.as_deref().is_some_and(|p| p.starts_with("logit_bias")), "{bad}");
        }
    }

    #[test]
    fn numbers_mean_what_llama_cpp_means() {
        let sampling = |body| said(body).expect("read").0.sampling;
        assert_eq!(sampling(json!({ "n_predict": -1 })).max_tokens, Some(u32::MAX));
        assert_eq!(sampling(json!({ "max_tokens": 3 })).max_tokens, Some(3));
        let (manner, form, _) = said(json!({ "n_predict": 0 })).expect("read");
        assert_eq!((manner.sampling.max_tokens, form.reads_only), (Some(1), true));
        for seed in [json!(-1), json!(u32::MAX)] {
            assert_eq!(sampling(json!({ "seed": seed })).seed, None);
        }
        assert_eq!(sampling(json!({ "temperature": -1 })).temperature, Some(0.0));
        assert_eq!(sampling(json!({ "stop": ["", "a"] })).stop, Some(vec!["a".to_owned()]));
        let penalised = sampling(json!({ "repeat_penalty": 1.2 }));
        assert_eq!((penalised.repeat_last_n, penalised.penalise_prompt), (Some(64), Some(true)));
        assert_eq!(sampling(json!({ "ignore_eos": true })).min_tokens, Some(u32::MAX));
    }

    #[test]
    fn samplers_come_by_name_or_letter() {
        let order = |given: Value| {
            let (manner, _, notes) = said(json!({ "samplers": given })).expect("read");
            (manner.sampling.samplers.expect("an order").to_string(), notes.len())
        };
        assert_eq!(order(json!("edkypmt")).0, "top_k;typ_p;top_p;min_p;temperature");
        assert_eq!(order(json!(["top_k", "top_p", "infill"])), ("top_k;top_p".into(), 1));
        assert_eq!(order(json!("min_p;temperature")).0, "min_p;temperature");
        assert!(said(json!({ "samplers": ["nobody"] })).is_err());
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_or_told() {
        for (name, nothing, something) in [
            ("lora", json!([]), json!([{ "id": 0, "scale": 1 }])),
            ("min_keep", json!(0), json!(2)),
            ("mirostat", json!(0), json!(1)),
            ("adaptive_target", json!(-1), json!(0.5)),
        ] {
            let body = |value: &Value| Value::from_iter([(name, value.clone())]);
            assert!(said(body(&nothing)).is_ok(), "{name}");
            let error = said(body(&something)).expect_err(name);
            assert_eq!((error.code, error.param.as_deref()), (Some("unsupported"), Some(name)));
        }
        assert!(said(json!({ "n_probs": 2, "post_sampling_probs": true })).is_err());
        let quiet = json!({ "cache_prompt": true, "id_slot": -1, "n_keep": 5, "post_sampling_probs": true });
        assert_eq!(said(quiet).expect("read").2, Vec::<String>::new());
        let told = said(json!({ "cache_prompt": false, "id_slot": 2 })).expect("read").2;
        assert_eq!(told.len(), 2, "{told:?}");
    }
}
