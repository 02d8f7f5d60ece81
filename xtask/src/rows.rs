//! The tables `ARCHS`, `TOWERS` and `FORMATS` as their sources have them, with the test of each row: what
//! docs/models.md and the counts of lines are made of.

use std::fmt::Write as _;
use std::path::Path;

/// Where architectures, their recordings, formats and their vectors are.
const ARCHS: &str = "crates/models/src/arch";
const GOLDEN: &str = "tests/golden";
/// Where encoders of images and their recordings are.
const TOWERS: &str = "crates/models/src/vision";
const SIGHT: &str = "tests/golden/vision";
const FORMATS: &str = "crates/quant/src";
const VECTORS: &str = "crates/quant/tests/fixtures";
/// Where [`page`] is kept.
pub const PAGE: &str = "docs/models.md";

/// A row of `ARCHS`.
#[derive(Debug, PartialEq, Eq)]
pub struct ArchRow {
    /// Its name, and that of the folder of its golden test.
    pub name: String,
    /// How files spell it.
    pub spellings: Vec<String>,
    /// The first sentence of its file.
    pub about: String,
    /// Its file, and how long that is.
    pub file: String,
    /// Lines of the file.
    pub lines: usize,
    /// Recordings of models so spelled, and whether a GGUF file is among each.
    pub recordings: Vec<(String, bool)>,
}

/// A row of `FORMATS`.
#[derive(Debug, PartialEq, Eq)]
pub struct FormatRow {
    /// Its name.
    pub name: String,
    /// Its module.
    pub file: String,
    /// Lines of the module without its tests.
    pub lines: usize,
    /// Whether there is a file of vectors.
    pub has_vectors: bool,
}

/// All architectures, by name.
pub fn archs(root: &Path) -> Vec<ArchRow> {
    rows_of(root, ARCHS, "Arch {", GOLDEN)
}

/// All encoders of images, by name.
fn towers(root: &Path) -> Vec<ArchRow> {
    rows_of(root, TOWERS, "Tower {", SIGHT)
}

/// Rows that begin so in the files of a folder.
fn rows_of(root: &Path, folder: &str, begin: &str, golden: &str) -> Vec<ArchRow> {
    let recordings = recordings(&root.join(golden));
    let mut rows = Vec::new();
    for (file, text) in sources(&root.join(folder)) {
        let about = text.lines().take_while(|l| l.starts_with("//!"));
        let about: Vec<&str> = about.map(|l| l.trim_start_matches("//!").trim()).collect();
        let about = about.join(" ");
        for row in text.split(begin).skip(1) {
            let Some(row) = row.split('}').next() else { continue };
            let strings: Vec<&str> = row.split('"').skip(1).step_by(2).collect();
            let Some((name, spellings)) = strings.split_first() else { continue };
            let is_own = |r: &&(String, String, bool)| spellings.contains(&r.1.as_str());
            let own = recordings.iter().filter(is_own).map(|r| (r.0.clone(), r.2)).collect();
            rows.push(ArchRow {
                name: (*name).to_owned(),
                spellings: spellings.iter().map(|s| (*s).to_owned()).collect(),
                about: about.split(". ").next().unwrap_or_default().trim_end_matches('.').into(),
                file: file.clone(),
                lines: text.lines().count(),
                recordings: own,
            });
        }
    }
    rows.sort_by(|a, b| a.name.cmp(&b.name));
    rows
}

/// Name, `model_type` and whether there is a GGUF file, of each recording.
fn recordings(folder: &Path) -> Vec<(String, String, bool)> {
    let Ok(folders) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut all: Vec<(String, String, bool)> = folders
        .filter_map(Result::ok)
        .filter(|f| f.path().join("golden.json").exists())
        .filter_map(|f| {
            let text = std::fs::read_to_string(f.path().join("config.json")).ok()?;
            // Python writes infinity, which JSON lacks.
            let text = text.replace("Infinity", "null");
            let config: serde_json::Value = serde_json::from_str(&text).ok()?;
            let kind = config["model_type"].as_str()?.to_owned();
            let gguf = ["twin.gguf", "twin.json"].iter().any(|t| f.path().join(t).exists());
            Some((f.file_name().into_string().ok()?, kind, gguf))
        })
        .collect();
    all.sort();
    all
}

/// All formats, in the order of the table.
pub fn formats(root: &Path) -> Vec<FormatRow> {
    let folder = root.join(FORMATS);
    let table = std::fs::read_to_string(folder.join("format.rs")).unwrap_or_default();
    let table = table.split("pub const FORMATS: &[Format] = &[").nth(1).unwrap_or_default();
    let vectors: Vec<String> = std::fs::read_dir(root.join(VECTORS))
        .map(|d| d.filter_map(|f| f.ok()?.file_name().into_string().ok()).collect())
        .unwrap_or_default();
    let rows = table.split(']').next().unwrap_or_default().split(',').map(str::trim);
    rows.filter_map(|row| row.rsplit_once("::"))
        .map(|(module, constant)| {
            let file = format!("{}.rs", module.replace("::", "/"));
            let stem = module.rsplit("::").next().unwrap_or(module);
            let name = if constant == "FORMAT" { stem } else { constant }.to_lowercase();
            let text = std::fs::read_to_string(folder.join(&file)).unwrap_or_default();
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let start = format!("{name}.");
            let has_vectors = vectors.iter().any(|v| v.starts_with(&start) || *v == name);
            FormatRow { name, file, lines: code.lines().count(), has_vectors }
        })
        .collect()
}

fn sources(folder: &Path) -> Vec<(String, String)> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut files: Vec<(String, String)> = entries
        .filter_map(Result::ok)
        .filter_map(|e| Some((e.file_name().into_string().ok()?, e.path())))
        .filter(|(name, _)| name.ends_with(".rs") && name != "mod.rs")
        .filter_map(|(name, path)| Some((name, std::fs::read_to_string(path).ok()?)))
        .collect();
    files.sort();
    files
}

/// Rows without a test, and tables that were read wrongly.
pub fn check(root: &Path, found: &mut Vec<String>) {
    let (archs, formats) = (archs(root), formats(root));
    let table = std::fs::read_to_string(root.join(ARCHS).join("mod.rs")).unwrap_or_default();
    let table = table.split("pub const ARCHS: &[Arch] = &[").nth(1).unwrap_or_default();
    let rows = table.split("];").next().unwrap_or_default().matches("::").count();
    if rows != archs.len() {
        found.push(format!("{ARCHS}: {rows} rows in ARCHS, {} in its files", archs.len()));
    }
    for row in &archs {
        if !root.join(GOLDEN).join(&row.name).join("golden.json").exists() {
            found.push(format!("{ARCHS}/{}: no golden test of {}", row.file, row.name));
        }
    }
    for row in towers(root).iter().filter(|row| row.recordings.is_empty()) {
        found.push(format!("{TOWERS}/{}: no golden test of {}", row.file, row.name));
    }
    for row in formats.iter().filter(|r| !r.has_vectors) {
        found.push(format!("{FORMATS}/{}: no vectors of {} in {VECTORS}", row.file, row.name));
    }
    if std::fs::read_to_string(root.join(PAGE)).ok() != Some(page(root)) {
        found.push(format!("{PAGE}: not what cargo xtask docs writes"));
    }
}

/// docs/models.md.
pub fn page(root: &Path) -> String {
    let mut page = String::from(
        "# Models and formats\n\nMade by `cargo xtask docs` from `ARCHS`, `TOWERS` and `FORMATS`. A row without \
         its test fails `cargo xtask tidy`.\n\n## Architectures\n\nEach is compared with Hugging Face \
         transformers: logits of every position and 32 greedy tokens, whole, in chunks, out of the \
         prefix cache, on the reference device and on the CPU. Generator: `python \
         tests/golden/record.py RECORDING`. A recording with *GGUF* runs from llama.cpp's conversion \
         too (`--twins`).\n\n| architecture | files call it | what | recordings |\n|---|---|---|---|\n",
    );
    add_rows(&mut page, archs(root));
    page.push_str(
        "\n## Encoders of images\n\nEach is compared with Hugging Face transformers: rows of two images, \
         logits of every position of a prompt with both and 32 greedy tokens, whole and in chunks, on \
         the reference device and on the CPU. Generator: `python tests/golden/vision/sight.py \
         RECORDING`.\n\n| encoder | files call it | what | recordings |\n|---|---|---|---|\n",
    );
    add_rows(&mut page, towers(root));
    page.push_str(
        "\n## Formats\n\nDecoded values are compared bit for bit with vectors of the format's own \
         package. Generator: `python crates/quant/tests/fixtures/generate.py`.\n\n| format | module \
         |\n|---|---|\n",
    );
    for row in formats(root) {
        let _ = writeln!(page, "| {} | `{FORMATS}/{}` |", row.name, row.file);
    }
    page
}

/// Rows of architectures or encoders as lines of a table.
fn add_rows(page: &mut String, rows: Vec<ArchRow>) {
    for row in rows {
        let spellings: Vec<String> = row.spellings.iter().map(|s| format!("`{s}`")).collect();
        let recording = |(name, gguf): &(String, bool)| match gguf {
            true => format!("{name} (GGUF)"),
            false => name.clone(),
        };
        let recordings: Vec<String> = row.recordings.iter().map(recording).collect();
        let (spellings, recordings) = (spellings.join(", "), recordings.join(", "));
        let _ = writeln!(page, "| {} | {spellings} | {} | {recordings} |", row.name, row.about);
    }
}

/// Lines of each architecture and format, and the medians.
pub fn lines(root: &Path) -> String {
    let mut text = String::new();
    let mut table = |title: &str, mut rows: Vec<(String, usize)>| {
        rows.sort();
        rows.dedup();
        let mut counts: Vec<usize> = rows.iter().map(|r| r.1).collect();
        counts.sort_unstable();
        let median = counts.get(counts.len() / 2).copied().unwrap_or(0);
        let _ = writeln!(text, "{median:6} median {title}");
        for (file, lines) in rows {
            let _ = writeln!(text, "{lines:6} {title} {file}");
        }
    };
    table("architecture", archs(root).into_iter().map(|r| (r.file, r.lines)).collect());
    table("format", formats(root).into_iter().map(|r| (r.file, r.lines)).collect());
    text
}
