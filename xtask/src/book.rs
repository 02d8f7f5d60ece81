//! The book of docs/: its table of contents names every page, and every page that is linked is there.

use std::path::Path;

/// The table of contents.
const SUMMARY: &str = "docs/SUMMARY.md";

/// Adds what is wrong.
pub fn check(root: &Path, found: &mut Vec<String>) {
    let docs = root.join("docs");
    let Ok(summary) = std::fs::read_to_string(root.join(SUMMARY)) else {
        found.push(format!("{SUMMARY} is not there"));
        return;
    };
    let listed = links(&summary);
    for page in pages(&docs) {
        let Ok(text) = std::fs::read_to_string(docs.join(&page)) else { continue };
        if page != "SUMMARY.md" && !listed.contains(&page.as_str()) {
            found.push(format!("docs/{page}: {SUMMARY} does not name it"));
        }
        let folder = docs.join(&page).parent().map(Path::to_owned).unwrap_or_default();
        for link in links(&text).into_iter().filter(|link| !folder.join(link).exists()) {
            found.push(format!("docs/{page}: links to {link}, which is not there"));
        }
    }
}

/// The pages under docs, by their paths there.
fn pages(docs: &Path) -> Vec<String> {
    let mut pages = Vec::new();
    for folder in ["", "decisions/"] {
        let entries = std::fs::read_dir(docs.join(folder)).into_iter().flatten();
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let pages_of = names.filter(|name| name.ends_with(".md"));
        pages.extend(pages_of.map(|name| format!("{folder}{name}")));
    }
    pages.sort();
    pages
}

/// Files that a text of Markdown links to; addresses and places within a page are none.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let files = targets.map(|target| target.split('#').next().unwrap_or_default());
    files.filter(|file| !file.is_empty() && !file.contains([':', ' ', '`'])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_from_addresses() {
        let text = "[a](b.md), [c](d/e.md#f), [g](https://h.i/j.md), [k](#l), [m]() `x](y z)`";
        assert_eq!(links(text), ["b.md", "d/e.md"]);
    }
}
