//! Models that are made of others by other words: the same weights with other defaults.

use std::sync::{Arc, OnceLock};

use tokenmill_engine::Defaults;
use tokenmill_output::Format;
use tokenmill_text::{ChatTemplate, TemplateError, TemplateTokens, Tokenizer, from_go};

use crate::alias::Alias;
use crate::config::Limits;
use crate::conversation::{Message, Role};
use crate::error::ApiError;
use crate::fields::{Fields, Notes};
use crate::holding::Holds;
use crate::model::ServedModel;
use crate::ollama::options;
use crate::stock::{Loader, Recipe};

/// A recipe as it is followed.
pub struct Made {
    /// As it was written.
    pub recipe: Recipe,
    /// What stands above the defaults of the model that it is made of.
    pub defaults: Defaults,
    /// What conversations begin with, behind their instructions.
    pub begins: Vec<Message>,
    /// Its template, in Jinja.
    jinja: Option<String>,
    template: OnceLock<Other>,
}

/// A template in the place of the model's own, and what follows from it.
#[derive(Clone)]
pub struct Other {
    /// The template.
    pub template: Result<Arc<ChatTemplate>, TemplateError>,
    /// How answers mark reasoning and calls.
    pub format: &'static Format,
    /// What answers hold that may call tools.
    pub holds: Arc<Holds>,
}

impl Made {
    /// Reads a recipe.
    ///
    /// # Errors
    /// 400 naming the parameter or the message at fault.
    pub fn read(recipe: Recipe) -> Result<Self, ApiError> {
        let parameters = recipe.parameters.clone().into();
        let mut notes = Notes::new(false);
        let said =
            options::read(Fields::of(parameters, "parameters")?, &Limits::default(), &mut notes)?;
        let message = |(role, text): &(String, String)| {
            let known = [Role::System, Role::User, Role::Assistant];
            let role = known.into_iter().find(|known| known.name() == role);
            let known = "messages: a role is system, user or assistant";
            role.map(|role| Message::text(role, text.as_str()))
                .ok_or_else(|| ApiError::bad("messages", known))
        };
        let jinja = recipe.template.as_deref().map(translated).transpose()?;
        let begins = recipe.messages.iter().map(message).collect::<Result<_, _>>()?;
        let system = recipe.system.clone().filter(|text| !text.trim().is_empty());
        let defaults = Defaults {
            sampling: said.sampling,
            context: said.context,
            system,
            ..Defaults::default()
        };
        Ok(Self { recipe, defaults, begins, jinja, template: OnceLock::new() })
    }

    /// An alias: a recipe that is no file, with its template as it is.
    pub fn alias(alias: Alias) -> Self {
        let Alias { name, model, defaults, template } = alias;
        let recipe = Recipe { name, from: model, ..Recipe::default() };
        Self { recipe, defaults, begins: Vec::new(), jinja: template, template: OnceLock::new() }
    }

    /// Puts its words over those of the model that it is made of.
    pub fn put_over(&self, served: &mut ServedModel) {
        let defaults = self.defaults.clone();
        served.names = vec![self.recipe.name.clone()];
        // (It is loaded once: a context of its own limits requests.)
        served.context = served.context.min(defaults.context.unwrap_or(u32::MAX));
        served.defaults = defaults.or(std::mem::take(&mut served.defaults));
        if let Some(other) = self.other(&served.tokenizer) {
            served.template = other.template;
        }
    }

    /// The template that it has of its own, for a model with that tokenizer.
    pub fn other(&self, tokenizer: &Tokenizer) -> Option<Other> {
        let source = self.jinja.as_deref()?;
        let make = || Other {
            template: ChatTemplate::new(source, tokenizer.template_tokens()).map(Arc::new),
            format: Format::of_template(source),
            holds: Arc::default(),
        };
        Some(self.template.get_or_init(make).clone())
    }
}

/// A template in Go's language as Jinja.
fn translated(go: &str) -> Result<String, ApiError> {
    let refused = |why: String| {
        let message = format!(
            "template: {why}; leave the template out, and the one in the model's files is used"
        );
        ApiError::unsupported("template", message)
    };
    let jinja = from_go(go).map_err(|error| refused(error.to_string()))?;
    let checked = ChatTemplate::new(&jinja, TemplateTokens::default());
    checked.map(|_| jinja).map_err(|error| refused(error.to_string()))
}

/// The recipes that a loader keeps; one that cannot be followed is told of in the log and left out.
pub fn made(loader: Option<&Arc<dyn Loader>>) -> Vec<Arc<Made>> {
    let recipes = loader.map(|loader| loader.recipes()).unwrap_or_default();
    let read = |recipe: Recipe| {
        let name = recipe.name.clone();
        let made = Made::read(recipe);
        let told =
            |error: &ApiError| tracing::warn!(name, reason = error.message, "a recipe is left out");
        made.inspect_err(told).ok().map(Arc::new)
    };
    recipes.into_iter().filter_map(read).collect()
}
