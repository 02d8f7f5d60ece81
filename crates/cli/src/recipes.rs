//! Models that clients of a server made of others, kept as one file in the data folder.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use tokenmill_server::Recipe;

use crate::failure::Failure;
use crate::store;

/// Its name.
const FILE: &str = "created.json";

fn place() -> Result<PathBuf, Failure> {
    let folder = store::own_folder();
    let folder = folder.ok_or_else(|| Failure::new("nothing is kept", "there is no home folder"));
    Ok(folder?.join(FILE))
}

/// All of them.
pub fn read() -> Result<Vec<Recipe>, Failure> {
    let path = place()?;
    let text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(&path, &error)),
    };
    serde_json::from_slice(&text).map_err(|error| failed(&path, &error))
}

/// From now on these: a crash leaves the old file or the new one. One that cannot be read stays.
pub fn write(recipes: &[Recipe]) -> Result<(), Failure> {
    read()?;
    let path = place()?;
    let text = serde_json::to_vec_pretty(recipes).map_err(|error| failed(&path, &error))?;
    let fresh = path.with_extension("json.new");
    let write = || {
        std::fs::create_dir_all(path.parent().unwrap_or(&path))?;
        let mut file = std::fs::File::create(&fresh)?;
        file.write_all(&text)?;
        file.sync_all()?;
        std::fs::rename(&fresh, &path)
    };
    write().map_err(|error| failed(&path, &error))
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    let what = format!("the models made of others are not kept in {}", path.display());
    Failure::new(what, error).fix(format!("mend or remove {}", path.display()))
}
