//! LM Studio's models, read where they lie: `models/USER/REPO` with GGUF files or an MLX folder.

use crate::env::StoreEnv;
use crate::hub_cache::{model_in, models_in};
use crate::name::ModelName;
use crate::own::LocalModel;
use serde::Deserialize;
use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;

/// Longest settings file, bytes.
const SETTINGS_BYTES: u64 = 1 << 20;

#[derive(Deserialize)]
struct Settings {
    #[serde(rename = "downloadsFolder")]
    models: Option<PathBuf>,
}

/// The folders of models: those the settings name, then the usual ones.
pub(crate) fn roots(env: &StoreEnv) -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> = Vec::new();
    for home in env.lm_studio_homes() {
        let mut text = Vec::new();
        let settings = File::open(home.join("settings.json"));
        // No settings, or odd ones: then the usual folder is right.
        let read = settings.and_then(|f| f.take(SETTINGS_BYTES).read_to_end(&mut text));
        let named = read.ok().and_then(|_| serde_json::from_slice::<Settings>(&text).ok()?.models);
        let named = named.filter(|path| path.is_absolute());
        roots.extend(named.into_iter().chain([home.join("models")]));
    }
    let mut seen = std::collections::BTreeSet::new();
    roots.retain(|root| seen.insert(root.clone()));
    roots
}

/// The model of `user/repo` and a quantisation, in the first folder that has it.
pub(crate) fn find(env: &StoreEnv, repo: &str, quant: Option<&str>) -> Option<LocalModel> {
    let quant_text = quant.map(str::to_string);
    let name = ModelName::LmStudio { repo: repo.to_string(), quant: quant_text }.to_string();
    roots(env).iter().find_map(|root| model_in(&root.join(repo), quant, &name))
}

/// All models; one whose file names make no model name goes by its path.
pub(crate) fn list(env: &StoreEnv) -> Vec<LocalModel> {
    let mut models: Vec<LocalModel> = Vec::new();
    for root in roots(env) {
        for user in folders(&root) {
            for repo in folders(&root.join(&user)) {
                let repo = format!("{user}/{repo}");
                let quant = |label: Option<&str>| label.map(str::to_string);
                let name_of = |label: Option<&str>| {
                    ModelName::LmStudio { repo: repo.clone(), quant: quant(label) }.to_string()
                };
                models.extend(models_in(&root.join(&repo), &name_of).into_iter().map(named));
            }
        }
    }
    models
}

fn named(model: LocalModel) -> LocalModel {
    match ModelName::parse(&model.name, &|_| false) {
        Ok(ModelName::LmStudio { .. }) => model,
        _ => LocalModel { name: model.path.display().to_string(), ..model },
    }
}

fn folders(dir: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|e| e.path().is_dir())
        .filter_map(|e| e.file_name().into_string().ok())
        .filter(|name| !name.chars().any(char::is_control))
        .collect();
    names.sort();
    names
}
