//! TOML edited in place: members are set, and taken out again from what others have written since.

use serde_json::Value;
use toml_edit::{DocumentMut, Item, Table};

use super::agents::Members;

/// The text with members set; all else stays.
///
/// # Errors
/// Why the text cannot be edited.
pub fn set(text: &str, members: &Members) -> Result<String, String> {
    let mut document: DocumentMut =
        text.parse().map_err(|e: toml_edit::TomlError| e.to_string())?;
    for (path, new) in members {
        let Some((last, folders)) = path.split_last() else { continue };
        let mut table: &mut Table = document.as_table_mut();
        for name in folders {
            let made = || {
                let mut table = Table::new();
                table.set_implicit(true);
                Item::Table(table)
            };
            let item = table.entry(name).or_insert_with(made);
            table = item.as_table_mut().ok_or_else(|| format!("{name} is no table [{name}]"))?;
        }
        replace(table, last, item(new));
    }
    Ok(document.to_string())
}

fn item(new: &Value) -> Item {
    match new {
        Value::Bool(is) => toml_edit::value(*is),
        Value::Number(n) => toml_edit::value(n.as_i64().unwrap_or(i64::MAX)),
        Value::Object(map) => {
            let mut table = Table::new();
            map.iter().for_each(|(name, one)| drop(table.insert(name, item(one))));
            Item::Table(table)
        }
        other => toml_edit::value(other.as_str().unwrap_or_default()),
    }
}

/// Puts an item into a table; comments and blanks around one of that name stay.
fn replace(table: &mut Table, name: &str, mut new: Item) {
    let Some(old) = table.get_mut(name) else { return drop(table.insert(name, new)) };
    if let (Some(was), Some(is)) = (old.as_value(), new.as_value_mut()) {
        *is.decor_mut() = was.decor().clone();
    }
    if let (Some(was), Some(is)) = (old.as_table(), new.as_table_mut()) {
        *is.decor_mut() = was.decor().clone();
    }
    *old = new;
}

/// A text that was changed since members were set in it, with these as they were in `own`; what else
/// was changed stays. `None` where somebody has changed one of them, or it is no TOML.
pub fn unset(now: &str, own: &str, written: &str, members: &Members) -> Option<String> {
    let mut now: DocumentMut = now.parse().ok()?;
    let [own, written]: [DocumentMut; 2] = [own.parse().ok()?, written.parse().ok()?];
    let said = |item: Option<&Item>| item.map(|item| item.to_string().trim().to_owned());
    for (path, _) in members {
        if said(at(&now, path)) != said(at(&written, path)) {
            return None;
        }
        let (last, folders) = path.split_last()?;
        let table = table_at(&mut now, folders)?;
        match at(&own, path) {
            Some(old) => replace(table, last, old.clone()),
            None => drop(table.remove(last)),
        }
        // Tables that were made on the way go with what they were made for.
        for depth in (1..=folders.len()).rev() {
            let made = at(&own, &folders[..depth]).is_none();
            let (name, above) = folders[..depth].split_last()?;
            let above = table_at(&mut now, above)?;
            let is_empty = above.get(name).and_then(Item::as_table).is_some_and(Table::is_empty);
            if made && is_empty {
                above.remove(name);
            }
        }
    }
    Some(now.to_string())
}

fn at<'a>(document: &'a DocumentMut, path: &[String]) -> Option<&'a Item> {
    path.iter().try_fold(document.as_item(), |item, name| item.get(name))
}

fn table_at<'a>(document: &'a mut DocumentMut, path: &[String]) -> Option<&'a mut Table> {
    let mut table = document.as_table_mut();
    for name in path {
        table = table.get_mut(name)?.as_table_mut()?;
    }
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json as value;

    #[test]
    fn toml_keeps_what_people_wrote() {
        let ours: Members = vec![
            (vec!["model".into()], "m".into()),
            (
                vec!["model_providers".into(), "t".into()],
                value!({ "url": "u", "on": false, "n": 3 }),
            ),
        ];
        let table = "[model_providers.t]\nurl = \"u\"\non = false\nn = 3\n";
        for (text, expect) in [
            ("", format!("model = \"m\"\n\n{table}")),
            (
                "# mine\nmodel = \"x\" # old\n\n[a]\nb = 1\n",
                format!("# mine\nmodel = \"m\" # old\n\n[a]\nb = 1\n\n{table}"),
            ),
            (
                "[model_providers.t]\nkey = 1\n[model_providers.u]\nc = 2\n",
                String::new(), // (only that it says so)
            ),
        ] {
            let found = set(text, &ours).expect(text);
            let document: toml_edit::Document<&str> =
                toml_edit::Document::parse(found.as_str()).expect("TOML");
            assert_eq!(document["model"].as_str(), Some("m"));
            assert_eq!(document["model_providers"]["t"]["url"].as_str(), Some("u"), "{found}");
            assert!(document["model_providers"]["t"].get("key").is_none(), "{found}");
            if !expect.is_empty() {
                assert_eq!(found, expect);
            }
            assert_eq!(set(&found, &ours).expect(text), found);
        }
        set("model_providers = 1", &ours).expect_err("no table");
        set("a = ", &ours).expect_err("no TOML");
    }

    #[test]
    fn what_an_agent_wrote_stays_when_ours_goes() {
        let ours: Members = vec![
            (vec!["model".into()], "m".into()),
            (vec!["model_providers".into(), "t".into()], value!({ "url": "u" })),
        ];
        for own in
            ["", "# mine\nmodel = \"x\" # old\n\n[a]\nb = 1\n", "[model_providers.u]\nc = 2\n"]
        {
            let written = set(own, &ours).expect(own);
            let trust = "\n[projects.\"/p\"]\ntrust_level = \"trusted\"\n";
            let now = format!("{written}{trust}");
            let found = unset(&now, own, &written, &ours).expect(own);
            let meant: DocumentMut = format!("{own}{trust}").parse().expect("TOML");
            let is: DocumentMut = found.parse().expect("TOML");
            let plain = |text: &DocumentMut| text.to_string().replace('\n', "");
            assert_eq!(plain(&is), plain(&meant), "{own}");
            // Ours was changed too: nobody knows what is meant.
            let other = now.replace("\"m\"", "\"other\"");
            assert_eq!(unset(&other, own, &written, &ours), None);
        }
        assert_eq!(unset("a = ", "", "", &ours), None);
    }
}
