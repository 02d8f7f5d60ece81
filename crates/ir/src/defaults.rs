//! How a model's packager wants it to be run, and what is said of how to sample, as values.

/// What is said of how to sample, by a request, a command line or a packager; `None` where they are
/// silent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SamplingValues {
    /// 0: always the likeliest token.
    pub temperature: Option<f32>,
    /// Only the k likeliest; 0: all.
    pub top_k: Option<u32>,
    /// Only the likeliest with this much probability together.
    pub top_p: Option<f32>,
    /// Only tokens with this part of the best one's probability.
    pub min_p: Option<f32>,
    /// Divides the logits of tokens seen before.
    pub repeat_penalty: Option<f32>,
    /// Taken from the logits of tokens seen before.
    pub presence_penalty: Option<f32>,
    /// Taken from the logits of tokens seen before, once for each time.
    pub frequency_penalty: Option<f32>,
    /// Seed.
    pub seed: Option<u64>,
    /// Most tokens to generate.
    pub max_tokens: Option<u32>,
    /// Texts that end an answer.
    pub stop: Option<Vec<String>>,
}

impl SamplingValues {
    /// These values, and where they are silent those of `under`.
    pub fn or(self, under: Self) -> Self {
        Self {
            temperature: self.temperature.or(under.temperature),
            top_k: self.top_k.or(under.top_k),
            top_p: self.top_p.or(under.top_p),
            min_p: self.min_p.or(under.min_p),
            repeat_penalty: self.repeat_penalty.or(under.repeat_penalty),
            presence_penalty: self.presence_penalty.or(under.presence_penalty),
            frequency_penalty: self.frequency_penalty.or(under.frequency_penalty),
            seed: self.seed.or(under.seed),
            max_tokens: self.max_tokens.or(under.max_tokens),
            stop: self.stop.or(under.stop),
        }
    }

    /// One line for each value, as `name value`.
    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut add = |name: &str, value: Option<String>| {
            lines.extend(value.map(|value| format!("{name} {value}")));
        };
        let number = |n: Option<f32>| n.map(|n| n.to_string());
        let count = |n: Option<u32>| n.map(|n| n.to_string());
        add("temperature", number(self.temperature));
        add("top_k", count(self.top_k));
        add("top_p", number(self.top_p));
        add("min_p", number(self.min_p));
        add("repeat_penalty", number(self.repeat_penalty));
        add("presence_penalty", number(self.presence_penalty));
        add("frequency_penalty", number(self.frequency_penalty));
        add("seed", self.seed.map(|n| n.to_string()));
        add("max_tokens", count(self.max_tokens));
        for stop in self.stop.iter().flatten() {
            add("stop", Some(format!("{stop:?}")));
        }
        lines
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
