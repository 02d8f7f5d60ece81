//! Asking by ability: `any:chat,tools,ctx>=32k` in the place of a model's name.

use tokenmill_output::Format;

use crate::error::ApiError;
use crate::fields::shown;
use crate::model::ServedModel;
use crate::stock::Abilities;

/// What a model must be able to do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wish {
    chat: bool,
    tools: bool,
    embeddings: bool,
    rerank: bool,
    vision: bool,
    context: u32,
}

impl Wish {
    /// The wish in the place of a name; `None`: it is a name.
    ///
    /// # Errors
    /// 400 for words that are none of an ability.
    pub fn parse(name: &str) -> Result<Option<Self>, ApiError> {
        let Some(words) = name.strip_prefix("any:") else { return Ok(None) };
        let mut wish = Self::default();
        for word in words.split(',').map(str::trim) {
            match word {
                "chat" => wish.chat = true,
                "tools" => wish.tools = true,
                "embeddings" => wish.embeddings = true,
                "rerank" => wish.rerank = true,
                "vision" => wish.vision = true,
                other => {
                    let least = other.strip_prefix("ctx>=").and_then(tokens);
                    wish.context = least.ok_or_else(|| {
                        let word = shown(other);
                        let known = "chat, tools, embeddings, rerank, vision and ctx>=32k";
                        ApiError::bad("model", format!("{word:?} is no ability: known are {known}"))
                    })?;
                }
            }
        }
        Ok(Some(wish))
    }

    /// Whether a model can do all of it.
    pub fn is_met_by(&self, can: &Abilities) -> bool {
        let pairs = [
            (self.chat, can.chat),
            (self.tools, can.tools),
            (self.embeddings, can.embeddings),
            (self.rerank, can.rerank),
            (self.vision, can.sees),
        ];
        pairs.iter().all(|(wanted, there)| !wanted || *there) && can.context >= self.context
    }
}

/// A number of tokens, perhaps with a `k`.
fn tokens(text: &str) -> Option<u32> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1024),
        None => (text, 1),
    };
    digits.parse::<u32>().ok()?.checked_mul(unit)
}

impl Abilities {
    /// Those of a model that is in memory.
    pub fn of(model: &ServedModel) -> Self {
        let (gives_text, width) = (model.engine.vocab() > 0, model.engine.width());
        let template = model.template.as_ref().ok().filter(|_| gives_text);
        Self {
            chat: template.is_some(),
            tools: template.is_some_and(|t| t.has_tools()),
            embeddings: !gives_text && width > 1,
            rerank: !gives_text,
            thinking: template
                .is_some_and(|t| Format::of_template(t.source()).may_reason(t.source(), "")),
            infill: gives_text && model.tokenizer.infill_ends().is_some(),
            sees: template.is_some() && model.eyes.is_some(),
            context: model.context.min(model.engine.longest()),
            bytes: model.engine.stats().memory.weight_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abilities_are_words_and_a_context() {
        let can = Abilities {
            chat: true,
            tools: true,
            embeddings: false,
            rerank: false,
            sees: true,
            context: 32_768,
            bytes: 1,
            ..Abilities::default()
        };
        for (name, met) in [
            ("any:chat", true),
            ("any:chat,tools,ctx>=32k", true),
            ("any:vision", true),
            ("any: chat , ctx>=32768", true),
            ("any:ctx>=32769", false),
            ("any:chat,embeddings", false),
            ("any:rerank", false),
        ] {
            let wish = Wish::parse(name).unwrap().expect("a wish");
            assert_eq!(wish.is_met_by(&can), met, "{name}");
        }
        assert_eq!(Wish::parse("anything"), Ok(None));
        for name in ["any:", "any:chat,", "any:ctx>=", "any:ctx>=99999999k", "any:hearing"] {
            let error = Wish::parse(name).expect_err("no ability");
            assert_eq!(
                (error.status.as_u16(), error.param.as_deref()),
                (400, Some("model")),
                "{name}"
            );
        }
    }
}
