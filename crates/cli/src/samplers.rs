//! Flags of the samplers that few need.

use clap::builder::NonEmptyStringValueParser;
use tokenmill_engine::{SamplingValues, sampling};

use crate::numbers::{positive, real, whole};

/// Samplers that few need; formulas and sources in docs/samplers.md.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "More samplers")]
pub struct MoreSampling {
    /// Only the most typical tokens with this much probability together.
    #[arg(long, value_parser = positive(1.0))]
    pub typical_p: Option<f32>,
    /// Only logits so many standard deviations below the best.
    #[arg(long, value_parser = real(0.0..=1000.0))]
    pub top_n_sigma: Option<f32>,
    /// How often likely tokens are left out but for the least likely of them.
    #[arg(long, value_parser = real(0.0..=1.0))]
    pub xtc_probability: Option<f32>,
    /// From which probability on they are [default: 0.1].
    #[arg(long, value_parser = real(0.0..=1.0))]
    pub xtc_threshold: Option<f32>,
    /// How far the temperature goes up and down with the entropy.
    #[arg(long, value_parser = real(0.0..=100.0))]
    pub dynatemp_range: Option<f32>,
    /// Power of the entropy in that [default: 1].
    #[arg(long, value_parser = real(0.0..=100.0))]
    pub dynatemp_exponent: Option<f32>,
    /// 2: Mirostat 2 in place of truncation.
    #[arg(long, value_parser = parse_mirostat)]
    pub mirostat: Option<u32>,
    /// Its target, bits a token [default: 5].
    #[arg(long, value_parser = real(0.0..=100.0))]
    pub mirostat_tau: Option<f32>,
    /// Its learning rate [default: 0.1].
    #[arg(long, value_parser = real(0.0..=10.0))]
    pub mirostat_eta: Option<f32>,
    /// Penalties look at so many of the last tokens [default: all].
    #[arg(long, value_parser = whole::<u32>(0..=u64::from(u32::MAX)))]
    pub repeat_last_n: Option<u32>,
    /// Makes repeated runs unlikely (DRY).
    #[arg(long, value_parser = real(0.0..=100.0))]
    pub dry_multiplier: Option<f32>,
    /// Base of its power [default: 1.75].
    #[arg(long, value_parser = real(1.0..=100.0))]
    pub dry_base: Option<f32>,
    /// Longest run that gets the multiplier alone [default: 2].
    #[arg(long, value_parser = whole::<u32>(0..=u64::from(u32::MAX)))]
    pub dry_allowed_length: Option<u32>,
    /// Which samplers, in which order, with `;` between their names; who is not named is off.
    #[arg(long, value_parser = parse_samplers)]
    pub samplers: Option<SamplingValues>,
    /// Text that the answer may not hold; may be repeated.
    #[arg(long = "bad-word", value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    pub bad_words: Vec<String>,
    /// Tokens before which the answer may not end.
    #[arg(long, value_parser = whole::<u32>(0..=u64::from(u32::MAX)))]
    pub min_tokens: Option<u32>,
}

impl MoreSampling {
    /// As values.
    pub fn values(&self) -> SamplingValues {
        let said = SamplingValues {
            typical_p: self.typical_p,
            top_n_sigma: self.top_n_sigma,
            xtc_probability: self.xtc_probability,
            xtc_threshold: self.xtc_threshold,
            dynatemp_range: self.dynatemp_range,
            dynatemp_exponent: self.dynatemp_exponent,
            mirostat: self.mirostat,
            mirostat_tau: self.mirostat_tau,
            mirostat_eta: self.mirostat_eta,
            repeat_last_n: self.repeat_last_n,
            dry_multiplier: self.dry_multiplier,
            dry_base: self.dry_base,
            dry_allowed_length: self.dry_allowed_length,
            bad_words: Some(self.bad_words.clone()).filter(|list| !list.is_empty()),
            min_tokens: self.min_tokens,
            ..SamplingValues::default()
        };
        self.samplers.clone().unwrap_or_default().or(said)
    }
}

fn parse_mirostat(text: &str) -> Result<u32, String> {
    match text {
        "0" => Ok(0),
        "2" => Ok(2),
        _ => Err("2, or 0 for none (version 1 is not supported)".to_owned()),
    }
}

/// An order of samplers, and the neutral values of those that it leaves out.
fn parse_samplers(text: &str) -> Result<SamplingValues, String> {
    let names: Vec<&str> = text.split(';').filter(|name| !name.is_empty()).collect();
    let mut values = SamplingValues::default();
    sampling::order(&names, &mut values)?;
    Ok(values)
}
