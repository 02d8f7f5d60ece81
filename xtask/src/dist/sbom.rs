//! A bill of materials in CycloneDX's form: every crate that is compiled into the program, by `cargo metadata`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::Packed;
use super::archive::sha256;

/// The bill as JSON.
pub fn of(root: &Path, packed: &Packed) -> Result<Vec<u8>, String> {
    let target = "x86_64-unknown-linux-gnu";
    let args =
        ["metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform", target];
    let text = super::output(Command::new("cargo").args(args).current_dir(root))?;
    let metadata: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let bill = bill(&metadata, "tokenmill-cli", packed)?;
    Ok(format!("{bill:#}\n").into_bytes())
}

/// The packages that a package is built of, itself among them.
fn reached(metadata: &Value, first: &str) -> BTreeSet<String> {
    let nodes = metadata["resolve"]["nodes"].as_array().into_iter().flatten();
    let is_compiled = |dependency: &&Value| {
        let kinds = dependency["dep_kinds"].as_array().into_iter().flatten();
        kinds.into_iter().any(|kind| kind["kind"].is_null())
    };
    let edges: BTreeMap<&str, Vec<&str>> = nodes
        .filter_map(|node| {
            let all = node["deps"].as_array().into_iter().flatten().filter(is_compiled);
            Some((node["id"].as_str()?, all.filter_map(|d| d["pkg"].as_str()).collect()))
        })
        .collect();
    let (mut found, mut open) = (BTreeSet::new(), vec![first]);
    while let Some(id) = open.pop() {
        if found.insert(id.to_owned()) {
            open.extend(edges.get(id).into_iter().flatten());
        }
    }
    found
}

fn bill(metadata: &Value, name: &str, packed: &Packed) -> Result<Value, String> {
    let packages: Vec<&Value> = metadata["packages"].as_array().into_iter().flatten().collect();
    let first = packages.iter().find(|package| package["name"] == name);
    let first = first.and_then(|package| package["id"].as_str());
    let reached = reached(metadata, first.ok_or_else(|| format!("no package {name}"))?);
    let is_reached =
        |package: &&&Value| package["id"].as_str().is_some_and(|id| reached.contains(id));
    let mut components: Vec<Value> = packages
        .iter()
        .filter(is_reached)
        .map(|package| {
            let (name, version) = (&package["name"], &package["version"]);
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            json!({
                "type": "library",
                "name": name,
                "version": version,
                "purl": format!("pkg:cargo/{}@{}", text(name), text(version)),
                "licenses": [{ "expression": text(&package["license"]).replace('/', " OR ") }],
            })
        })
        .collect();
    components.sort_by_key(|component| component["purl"].as_str().map(str::to_owned));
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": "tokenmill",
                "version": packed.version,
                "hashes": [{ "alg": "SHA-256", "content": sha256(&packed.program) }],
            },
        },
        "components": components,
    }))
}
