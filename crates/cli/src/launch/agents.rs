//! The agents, one function each: which settings make it ask a server here, where they are kept,
//! and how it is started. What each reads was seen in runs of bench/suites/agents, but for Claude
//! Code, Goose and Zed, whose documentation says it.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::args::Agent;

/// Our name among an agent's providers.
const PROVIDER: &str = "tokenmill";
/// The variable that holds the server's key.
const KEY: &str = "TOKENMILL_API_KEY";
/// What agents get that insist on a key where the server asks for none.
const NO_KEY: &str = "none";

/// What an agent is told.
pub struct Told {
    /// The server's root, without `/v1`.
    pub url: String,
    /// The model's name.
    pub model: String,
    /// Most tokens of a prompt and its answer.
    pub context: u64,
    /// The server's key.
    pub key: Option<String>,
    /// The user's folders.
    pub folders: Folders,
}

/// Where agents keep their settings.
pub struct Folders {
    /// `$HOME`.
    pub home: PathBuf,
    /// `$XDG_CONFIG_HOME`.
    pub config: PathBuf,
    /// `$CODEX_HOME`.
    pub codex: PathBuf,
}

/// How a file is written.
pub enum Form {
    /// Members set in TOML, all else as it is.
    Toml(Members),
    /// Members set in JSON that may have comments, all else as it is.
    Json(Members),
    /// A file of our own, which nobody misses and an agent may change as it likes.
    Own(String),
}

/// Members by their path, and what each becomes.
pub type Members = Vec<(Vec<String>, Value)>;

/// How an agent is set up.
pub struct Setup {
    /// Its program; none: it is not started from here.
    pub program: Option<&'static str>,
    /// Its settings.
    pub file: Option<(PathBuf, Form)>,
    /// The key stands in that file.
    pub is_secret: bool,
    /// Its variables.
    pub env: Vec<(&'static str, String)>,
    /// Its arguments before the user's.
    pub args: Vec<String>,
    /// Its arguments where the user gives none.
    pub alone: &'static [&'static str],
}

impl Setup {
    fn of(program: &'static str) -> Self {
        let (env, args) = (Vec::new(), Vec::new());
        Self { program: Some(program), file: None, is_secret: false, env, args, alone: &[] }
    }

    fn env(mut self, more: &[(&'static str, &str)]) -> Self {
        self.env.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
        self
    }

    fn args(mut self, more: &[&str]) -> Self {
        self.args.extend(more.iter().map(|word| (*word).to_owned()));
        self
    }

    fn file(self, path: PathBuf, form: Form) -> Self {
        Self { file: Some((path, form)), ..self }
    }

    /// The same, with the key as a word of the file.
    fn secret(self, told: &Told) -> Self {
        Self { is_secret: told.key.is_some(), ..self }
    }
}

impl Told {
    /// Where OpenAI's dialects are.
    fn v1(&self) -> String {
        format!("{}/v1", self.url)
    }

    fn key(&self) -> &str {
        self.key.as_deref().unwrap_or(NO_KEY)
    }

    /// Longest answers that are asked for, tokens: an eighth of the context.
    fn answer(&self) -> u64 {
        (self.context / 8).clamp(256, 32_000)
    }

    /// The variable with the key, for settings that name it.
    fn key_env(&self) -> Vec<(&'static str, String)> {
        self.key.iter().map(|key| (KEY, key.clone())).collect()
    }
}

fn members(list: &[(&[&str], Value)]) -> Members {
    let owned = |path: &[&str]| path.iter().map(|name| (*name).to_owned()).collect();
    list.iter().map(|(path, value)| (owned(path), value.clone())).collect()
}

/// How an agent is set up for a server.
pub fn setup(agent: Agent, told: &Told) -> Setup {
    match agent {
        Agent::Codex => codex(told),
        Agent::Claude => claude(told),
        Agent::Opencode => opencode(told, "opencode", "OPENCODE_CONFIG"),
        Agent::Kilo => opencode(told, "kilo", "KILO_CONFIG"),
        Agent::Qwen => qwen(told),
        Agent::Pi => pi(told),
        Agent::Cline => cline(told),
        Agent::Continue => continue_cli(told),
        Agent::Aider => aider(told),
        Agent::Goose => goose(told),
        Agent::Zed => zed(told),
    }
}

/// Responses, without the WebSocket that it would try first.
fn codex(told: &Told) -> Setup {
    let mut provider = json!({
        "name": PROVIDER,
        "base_url": told.v1(),
        "wire_api": "responses",
        "supports_websockets": false,
    });
    if told.key.is_some() {
        provider["env_key"] = KEY.into();
    }
    let set = members(&[
        (&["model"], told.model.as_str().into()),
        (&["model_provider"], PROVIDER.into()),
        (&["model_context_window"], told.context.into()),
        (&["model_providers", PROVIDER], provider),
    ]);
    let setup = Setup::of("codex").file(told.folders.codex.join("config.toml"), Form::Toml(set));
    Setup { env: told.key_env(), ..setup }
}

/// Messages. An empty key keeps a log-in from coming first; the header that tells of the client
/// changes with each request, which would spoil the prompt cache.
fn claude(told: &Told) -> Setup {
    let context = told.context.to_string();
    let model = told.model.as_str();
    Setup::of("claude").env(&[
        ("ANTHROPIC_BASE_URL", &told.url),
        ("ANTHROPIC_AUTH_TOKEN", told.key()),
        ("ANTHROPIC_API_KEY", ""),
        ("ANTHROPIC_MODEL", model),
        ("ANTHROPIC_DEFAULT_OPUS_MODEL", model),
        ("ANTHROPIC_DEFAULT_SONNET_MODEL", model),
        ("ANTHROPIC_DEFAULT_HAIKU_MODEL", model),
        ("CLAUDE_CODE_AUTO_COMPACT_WINDOW", &context),
        ("CLAUDE_CODE_ATTRIBUTION_HEADER", "0"),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
    ])
}

/// Chat completions, of OpenCode and of Kilo, which came of it: a file that is read over the user's.
/// Both write into that one.
fn opencode(told: &Told, program: &'static str, variable: &'static str) -> Setup {
    let Told { model, context, .. } = told;
    let key = if told.key.is_some() { format!("{{env:{KEY}}}") } else { NO_KEY.to_owned() };
    let full = format!("{PROVIDER}/{model}");
    let mut models = json!({});
    models[model] = json!({
        "name": model,
        "tool_call": true,
        "limit": { "context": context, "output": told.answer() },
    });
    let mut all = json!({ "model": full, "small_model": full, "provider": {} });
    all["provider"][PROVIDER] = json!({
        "npm": "@ai-sdk/openai-compatible",
        "name": PROVIDER,
        "options": { "baseURL": told.v1(), "apiKey": key },
        "models": models,
    });
    let path = told.folders.config.join(program).join("tokenmill.json");
    let shown = path.display().to_string();
    let setup = Setup { env: told.key_env(), ..Setup::of(program) };
    setup.file(path, Form::Own(format!("{all:#}\n"))).env(&[(variable, &shown)])
}

/// Chat completions; it would give up after four minutes without a word.
fn qwen(told: &Told) -> Setup {
    let (url, model) = (told.v1(), told.model.as_str());
    Setup::of("qwen")
        .env(&[
            ("OPENAI_BASE_URL", &url),
            ("OPENAI_API_KEY", told.key()),
            ("OPENAI_MODEL", model),
            ("QWEN_STREAM_IDLE_TIMEOUT_MS", "0"),
        ])
        .args(&["--auth-type", "openai", "-m", model])
}

/// Chat completions.
fn pi(told: &Told) -> Setup {
    let Told { model, context, .. } = told;
    let provider = json!({
        "baseUrl": told.v1(),
        "api": "openai-completions",
        "apiKey": told.key(),
        "models": [{
            "id": model,
            "reasoning": false,
            "contextWindow": context,
            "maxTokens": told.answer(),
        }],
    });
    let set = members(&[(&["providers", PROVIDER], provider)]);
    Setup::of("pi")
        .file(told.folders.home.join(".pi/agent/models.json"), Form::Json(set))
        .secret(told)
        .args(&["--provider", PROVIDER, "--model", model])
}

/// Chat completions, by a list of providers in the place of the user's, for it writes into that.
fn cline(told: &Told) -> Setup {
    let kind = "openai-compatible";
    let settings = json!({
        "provider": kind,
        "model": told.model,
        "apiKey": told.key(),
        "baseUrl": told.v1(),
    });
    let provider = json!({
        "settings": settings,
        "updatedAt": "2026-01-01T00:00:00.000Z",
        "tokenSource": "manual",
    });
    let mut all = json!({ "version": 1, "lastUsedProvider": kind, "providers": {} });
    all["providers"][kind] = provider;
    let path = told.folders.home.join(".cline/tokenmill.json");
    let shown = path.display().to_string();
    let setup = Setup::of("cline").file(path, Form::Own(format!("{all:#}\n")));
    let setup = setup.env(&[("CLINE_PROVIDER_SETTINGS_PATH", &shown)]);
    setup.args(&["-P", kind, "-m", &told.model])
}

/// Chat completions, from a file of its own that the program is given.
fn continue_cli(told: &Told) -> Setup {
    // A text of JSON is one of YAML.
    let text = |text: &str| Value::from(text).to_string();
    let (model, url, key) = (text(&told.model), text(&told.v1()), text(told.key()));
    let (context, answer) = (told.context, told.answer());
    let yaml = format!(
        "name: {PROVIDER}\nversion: 1.0.0\nschema: v1\nmodels:\n  - name: {model}\n    \
         provider: openai\n    model: {model}\n    apiBase: {url}\n    apiKey: {key}\n    \
         roles: [chat, edit, apply]\n    capabilities: [tool_use]\n    defaultCompletionOptions:\n      \
         contextLength: {context}\n      maxTokens: {answer}\n"
    );
    let path = told.folders.home.join(".continue/tokenmill.yaml");
    let shown = path.display().to_string();
    let setup = Setup::of("cn").file(path, Form::Own(yaml));
    setup.args(&["--config", &shown])
}

/// Chat completions.
fn aider(told: &Told) -> Setup {
    let (url, model) = (told.v1(), format!("openai/{}", told.model));
    Setup::of("aider")
        .env(&[("OPENAI_API_BASE", &url), ("OPENAI_API_KEY", told.key())])
        .args(&["--model", &model])
}

/// Chat completions.
fn goose(told: &Told) -> Setup {
    let context = told.context.to_string();
    let setup = Setup::of("goose").env(&[
        ("GOOSE_PROVIDER", "openai"),
        ("GOOSE_MODEL", &told.model),
        ("GOOSE_CONTEXT_LIMIT", &context),
        ("OPENAI_HOST", &told.url),
        ("OPENAI_BASE_PATH", "v1/chat/completions"),
        ("OPENAI_API_KEY", told.key()),
    ]);
    Setup { alone: &["session"], ..setup }
}

/// Chat completions; it takes the key from the variable that is named after the provider.
fn zed(told: &Told) -> Setup {
    let Told { model, context, .. } = told;
    let provider = json!({
        "api_url": told.v1(),
        "available_models": [{
            "name": model,
            "display_name": model,
            "max_tokens": context,
            "max_output_tokens": told.answer(),
            "capabilities": { "tools": true, "images": false },
        }],
    });
    let set = members(&[
        (&["language_models", "openai_compatible", PROVIDER], provider),
        (&["agent", "default_model"], json!({ "provider": PROVIDER, "model": model })),
    ]);
    let setup =
        Setup::of("zed").file(told.folders.config.join("zed/settings.json"), Form::Json(set));
    setup.env(&[(KEY, told.key())])
}
