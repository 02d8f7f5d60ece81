//! How an answer is made, in llama.cpp's words: `generation_settings` of an answer, and `params` of what a
//! request gets that says nothing.

use serde_json::{Value, json};
use tokenmill_engine::{SamplingValues, sampling};
use tokenmill_ir::sampling::Order;

use crate::openai::models::told;

/// A count whose highest stands for all, which is -1 there.
fn count(n: u32) -> Value {
    if n == u32::MAX { (-1).into() } else { n.into() }
}

/// The settings of a request that says these values; `seed` may be another each time.
pub fn settings(said: &SamplingValues) -> Value {
    let number = |value: Option<f32>, nothing: f32| told(value.unwrap_or(nothing));
    let breakers = || sampling::BREAKERS.map(str::to_owned).to_vec();
    let order = said.samplers.unwrap_or(Order::USUAL).to_string();
    // (An order that names neither of these has them ask for nothing.)
    let penalties = [
        said.repeat_penalty == Some(1.0),
        said.presence_penalty == Some(0.0),
        said.frequency_penalty == Some(0.0),
    ];
    let first =
        [("penalties", penalties.contains(&false)), ("dry", said.dry_multiplier != Some(0.0))];
    let first = first.into_iter().filter(|(_, is_on)| *is_on).map(|(name, _)| name);
    let samplers = first.chain(order.split(';').filter(|name| !name.is_empty()));
    let most = count(said.max_tokens.unwrap_or(sampling::ANSWER_TOKENS));
    json!({
        "seed": said.seed,
        "temperature": number(said.temperature, sampling::TEMPERATURE),
        "dynatemp_range": number(said.dynatemp_range, 0.0),
        "dynatemp_exponent": number(said.dynatemp_exponent, 1.0),
        "top_k": said.top_k.unwrap_or(0),
        "top_p": number(said.top_p, sampling::TOP_P),
        "min_p": number(said.min_p, sampling::MIN_P),
        "top_n_sigma": number(said.top_n_sigma, 0.0),
        "xtc_probability": number(said.xtc_probability, 0.0),
        "xtc_threshold": number(said.xtc_threshold, 0.1),
        "typical_p": number(said.typical_p, 1.0),
        "repeat_last_n": count(said.repeat_last_n.unwrap_or(u32::MAX)),
        "repeat_penalty": number(said.repeat_penalty, 1.0),
        "presence_penalty": number(said.presence_penalty, 0.0),
        "frequency_penalty": number(said.frequency_penalty, 0.0),
        "dry_multiplier": number(said.dry_multiplier, 0.0),
        "dry_base": number(said.dry_base, 1.75),
        "dry_allowed_length": said.dry_allowed_length.unwrap_or(2),
        "dry_penalty_last_n": count(said.dry_penalty_last_n.unwrap_or(u32::MAX)),
        "dry_sequence_breakers": said.dry_sequence_breakers.clone().unwrap_or_else(breakers),
        "mirostat": said.mirostat.unwrap_or(0),
        "mirostat_tau": number(said.mirostat_tau, 5.0),
        "mirostat_eta": number(said.mirostat_eta, 0.1),
        "stop": said.stop.clone().unwrap_or_default(),
        "max_tokens": most,
        "n_predict": most,
        "min_keep": 0,
        "samplers": samplers.collect::<Vec<_>>(),
        "post_sampling_probs": false,
        "lora": [],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_says_is_what_holds() {
        let none = settings(&SamplingValues::default());
        assert_eq!((&none["temperature"], &none["top_p"]), (&json!(0.8), &json!(0.95)));
        assert_eq!((&none["n_predict"], &none["dry_penalty_last_n"]), (&json!(4096), &json!(-1)));
        assert_eq!(none["samplers"].as_array().map(Vec::len), Some(9));
        let said = SamplingValues {
            max_tokens: Some(u32::MAX),
            top_k: Some(7),
            seed: Some(3),
            ..SamplingValues::default()
        };
        let said = settings(&said);
        assert_eq!(
            (&said["n_predict"], &said["top_k"], &said["seed"]),
            (&json!(-1), &json!(7), &json!(3))
        );
    }
}
