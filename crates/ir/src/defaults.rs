//! How a model's packager wants it to be run, and what is said of how to sample, as values.

use crate::sampling::Order;

/// A struct of values that nobody need give, filled up from another, and told a line each.
macro_rules! values {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $value:ident: $kind:ty,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Default, PartialEq)]
        pub struct $name {
            $($(#[$doc])* pub $value: Option<$kind>,)*
        }

        impl $name {
            /// These values, and where they are silent those of `under`.
            pub fn or(self, under: Self) -> Self {
                Self { $($value: self.$value.or(under.$value),)* }
            }

            /// One line for each value, as `name value`.
            fn lines(&self) -> Vec<String> {
                let mut lines = Vec::new();
                $(
                    let told = self.$value.iter().flat_map(Told::told);
                    lines.extend(told.map(|value| format!("{} {value}", stringify!($value))));
                )*
                lines
            }
        }
    };
}

values! {
    /// What is said of how to sample, by a request, a command line or a packager; `None` where they
    /// are silent. Formulas and sources: [`crate::sampling`].
    SamplingValues {
        /// 0: always the likeliest token.
        temperature: f32,
        /// Only the k likeliest; 0: all.
        top_k: u32,
        /// Only the likeliest with this much probability together.
        top_p: f32,
        /// Only tokens with this part of the best one's probability.
        min_p: f32,
        /// Only the most typical with this much probability together; 1: all.
        typical_p: f32,
        /// Only logits so many standard deviations below the best; 0: all.
        top_n_sigma: f32,
        /// How often likely tokens are left out but for the least likely of them; 0: never.
        xtc_probability: f32,
        /// From which probability on they are.
        xtc_threshold: f32,
        /// How far the temperature goes up and down with the entropy; 0: not.
        dynatemp_range: f32,
        /// Power of the entropy in that.
        dynatemp_exponent: f32,
        /// 2: Mirostat 2 in place of truncation; 0: none.
        mirostat: u32,
        /// Its target, bits a token.
        mirostat_tau: f32,
        /// Its learning rate.
        mirostat_eta: f32,
        /// Which samplers, in which order.
        samplers: Order,
        /// Divides the logits of tokens seen before.
        repeat_penalty: f32,
        /// Taken from the logits of tokens seen before.
        presence_penalty: f32,
        /// Taken from the logits of tokens seen before, once for each time.
        frequency_penalty: f32,
        /// Of how many of the last tokens these three know; `u32::MAX`: all.
        repeat_last_n: u32,
        /// Presence and frequency penalties count the prompt's tokens too.
        penalise_prompt: bool,
        /// Of the penalty on repeated runs; 0: none.
        dry_multiplier: f32,
        /// Base of its power.
        dry_base: f32,
        /// Longest run that gets the multiplier alone.
        dry_allowed_length: u32,
        /// In how many of the last tokens runs are looked for; `u32::MAX`: all.
        dry_penalty_last_n: u32,
        /// Texts that end a run.
        dry_sequence_breakers: Vec<String>,
        /// Texts that the answer may not hold.
        bad_words: Vec<String>,
        /// Tokens before which it may not end.
        min_tokens: u32,
        /// Seed.
        seed: u64,
        /// Most tokens to generate.
        max_tokens: u32,
        /// Texts that end an answer.
        stop: Vec<String>,
    }
}

/// A value for people, in a line or several.
trait Told {
    fn told(&self) -> Vec<String>;
}

macro_rules! told {
    ($($kind:ty),*) => {
        $(impl Told for $kind {
            fn told(&self) -> Vec<String> {
                vec![self.to_string()]
            }
        })*
    };
}

told!(f32, u32, u64, bool, Order);

impl Told for Vec<String> {
    fn told(&self) -> Vec<String> {
        self.iter().map(|text| format!("{text:?}")).collect()
    }
}

/// What a model's packager says of how it is run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Defaults {
    /// How to sample.
    pub sampling: SamplingValues,
    /// Longest sequence, tokens.
    pub context: Option<u32>,
    /// System message of conversations that bring none.
    pub system: Option<String>,
    /// Length of a template in Go's language. It is not run: the model file has its own.
    pub template_bytes: Option<u64>,
    /// What the packager also says and this program does not follow, one phrase each.
    pub unused: Vec<String>,
}

impl Defaults {
    /// These, and where they are silent those of `under`.
    pub fn or(self, under: Self) -> Self {
        Self {
            sampling: self.sampling.or(under.sampling),
            context: self.context.or(under.context),
            system: self.system.or(under.system),
            template_bytes: self.template_bytes.or(under.template_bytes),
            unused: [self.unused, under.unused].concat(),
        }
    }

    /// One line for each default, as `name value`.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = self.sampling.lines();
        let mut add = |name: &str, value: Option<String>| {
            lines.extend(value.map(|value| format!("{name} {value}")));
        };
        add("ctx", self.context.map(|n| n.to_string()));
        add("system", self.system.as_ref().map(|text| format!("{:?}", shown(text))));
        let template =
            |n| format!("in Go's language ({n} bytes), not run: the model file's own is");
        add("template", self.template_bytes.map(template));
        for what in &self.unused {
            add("not used:", Some(what.clone()));
        }
        lines
    }
}

/// Text from outside, made safe to print: control characters escaped, at most 200 characters.
pub fn shown(text: &str) -> String {
    text.chars()
        .take(200)
        .flat_map(|c| {
            let escaped: Vec<char> =
                if c.is_control() { c.escape_default().collect() } else { vec![c] };
            escaped
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_speaks_first_is_heard() {
        let says = |temperature, max_tokens| SamplingValues {
            temperature,
            max_tokens,
            ..SamplingValues::default()
        };
        let cases = [
            (says(None, None), says(Some(0.5), Some(9)), says(Some(0.5), Some(9))),
            (says(Some(0.0), None), says(Some(0.5), Some(7)), says(Some(0.0), Some(7))),
            (says(None, Some(3)), says(None, Some(7)), says(None, Some(3))),
        ];
        for (first, under, expect) in cases {
            assert_eq!(first.clone().or(under.clone()), expect, "{first:?} {under:?}");
        }
        let stops = |list: &[&str]| SamplingValues {
            stop: Some(list.iter().map(|s| s.to_string()).collect()),
            ..SamplingValues::default()
        };
        assert_eq!(stops(&[]).or(stops(&["x"])), stops(&[]), "no stops is a word too");
    }
}
