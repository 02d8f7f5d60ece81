//! The planner's golden answers (planner/rows: what an expert would say, the need, the page), and what holds for all
//! machines, models and needs. `UPDATE_PLANS=1 cargo test -p tokenmill-engine --test planner` writes the pages again:
//! read the difference.

use std::path::{Path, PathBuf};

use tokenmill_engine::planner::page::page;
use tokenmill_engine::planner::{Machine, Model, Need, Plan, Role, Task, Verdict, known, plan};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/planner")
}

fn read<T: serde::de::DeserializeOwned>(name: &str) -> Vec<T> {
    let path = folder().join(name);
    let text = std::fs::read_to_string(&path).expect("read");
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// A row: its words, machine, models, need, and the page that is expected.
struct Row {
    path: PathBuf,
    head: String,
    machine: Machine,
    models: Vec<Model>,
    need: Need,
    page: String,
}

fn row(path: PathBuf, machines: &[Machine], models: &[Model]) -> Row {
    let text = std::fs::read_to_string(&path).expect("read");
    let (head, page) = text.split_once("\n\n").expect("a blank line behind the head");
    let member = |name: &str| {
        let line = head.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(": "));
        line.unwrap_or_else(|| panic!("{}: no {name}", path.display())).trim()
    };
    let named = |name: &str| models.iter().find(|m| m.name == name).expect(name).clone();
    let here = head.lines().find_map(|l| l.strip_prefix("here:")).expect("here").trim();
    let here = here.split(", ").filter(|n| !n.is_empty()).map(named);
    Row {
        machine: machines.iter().find(|m| m.name == member("machine")).expect("machine").clone(),
        models: here.chain(known()).collect(),
        need: serde_json::from_str(member("need")).expect("need"),
        head: head.to_owned(),
        page: page.to_owned(),
        path,
    }
}

fn rows() -> Vec<Row> {
    let (machines, models) = (read("machines.json"), read("models.json"));
    let files = std::fs::read_dir(folder().join("rows")).expect("the rows");
    let mut paths: Vec<PathBuf> = files.map(|f| f.expect("a row").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| row(path, &machines, &models)).collect()
}

/// Lines that differ, as people read them.
fn difference(expect: &str, found: &str) -> String {
    let (expect, found): (Vec<&str>, Vec<&str>) =
        (expect.lines().collect(), found.lines().collect());
    let gone = expect.iter().filter(|l| !found.contains(l)).map(|l| format!("  - {l}\n"));
    let new = found.iter().filter(|l| !expect.contains(l)).map(|l| format!("  + {l}\n"));
    gone.chain(new).collect()
}

#[test]
fn golden_answers() {
    let update = std::env::var_os("UPDATE_PLANS").is_some();
    let rows = rows();
    assert!(rows.len() >= 30);
    let mut wrong = String::new();
    for Row { path, head, machine, models, need, page: expect } in &rows {
        let found = page(machine, &plan(machine, models, need), &[]);
        if update {
            std::fs::write(path, format!("{head}\n\n{found}")).expect("written");
        } else if &found != expect {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            wrong += &format!("{name}\n{}", difference(expect, &found));
        }
    }
    assert!(wrong.is_empty(), "answers that differ:\n{wrong}");
}

/// Every machine, every set of one to three models, every task.
fn every(mut check: impl FnMut(&Machine, &[Model], &Need, Plan)) {
    let (machines, models): (Vec<Machine>, Vec<Model>) =
        (read("machines.json"), read("models.json"));
    let tasks = tokenmill_engine::planner::need::TASKS.iter().map(|row| row.task);
    for (task, machine) in tasks.flat_map(|task| machines.iter().map(move |m| (task, m))) {
        for (at, users) in [(0, 1), (2, 4), (5, 100)] {
            for ctx in [None, Some(1000), Some(100_000)] {
                let some = &models[at..at + 3];
                let need = Need { task, users, ctx, named: Vec::new() };
                check(machine, some, &need, plan(machine, some, &need));
            }
        }
    }
}

#[test]
fn what_is_chosen_fits_and_can_do_it() {
    let mut chosen = 0;
    every(|machine, models, need, plan| {
        let Some(c) = &plan.chosen else {
            assert_eq!(plan.verdict, Verdict::No);
            assert!(!plan.reasons.is_empty());
            return;
        };
        chosen += 1;
        let m = &c.memory;
        assert!(m.needed <= machine.room(), "{need:?} {c:?}");
        assert_eq!(m.needed, m.weights + m.cache + m.buffers + m.process);
        let model = models.iter().find(|m| m.name == c.model).expect("of those given");
        let row = need.task.row();
        let ability = row.ability.is_none_or(|a| model.can(a));
        assert!(ability && c.context <= model.context, "{need:?} {c:?}");
        assert!(need.ctx.is_none_or(|ctx| c.context == ctx.min(model.context)), "{need:?} {c:?}");
        assert!(c.streams >= 1 && c.streams <= need.users && c.full_streams <= need.users);
        let s = &c.speed;
        assert!(s.prompt_tok_s.is_finite() && s.prompt_tok_s > 0.0 && s.first_s > 0.0);
        assert_eq!(s.decode_tok_s.is_none(), c.role == Role::Embeddings);
        assert_eq!(plan.missing.is_some(), row.missing.is_some());
        assert!(!plan.reasons.is_empty() && !c.commands.is_empty());
    });
    assert!(chosen > 300, "{chosen}");
}

#[test]
fn more_memory_is_never_worse_and_faster_memory_never_slower() {
    every(|machine, models, need, before| {
        let bytes = machine.room() * 2;
        let larger = Machine { available: Some(bytes), memory: bytes, ..machine.clone() };
        let after = plan(&larger, models, need);
        assert!(before.chosen.is_none() || after.chosen.is_some(), "{need:?}");
        let mut quicker = machine.clone();
        let reads = machine.ceilings().read * 2.0;
        quicker.limits.read_gb_s = Some(reads / 1e9);
        for model in models {
            let one = std::slice::from_ref(model);
            let speed = |m: &Machine| plan(m, one, need).chosen.map(|c| c.speed);
            if let (Some(slow), Some(quick)) = (speed(machine), speed(&quicker)) {
                assert!(quick.first_s <= slow.first_s, "{need:?} {}", model.name);
                assert!(quick.decode_tok_s >= slow.decode_tok_s, "{need:?} {}", model.name);
            }
        }
    });
}

#[test]
fn what_this_version_cannot_do_has_no_command() {
    every(|_, _, need, plan| {
        for a in &plan.alternatives {
            let later = a.why_not.contains("not in this version");
            assert_eq!(later, a.command.is_none(), "{need:?} {a:?}");
        }
    });
}

#[test]
fn descriptions_that_are_wrong_are_refused() {
    for text in ["{}", r#"{"for": "dance"}"#, r#"{"for": "chat", "user": 2}"#] {
        let need = serde_json::from_str::<Need>(text);
        assert_eq!(need.is_ok(), text == "{}", "{text}");
    }
    assert_eq!(serde_json::from_str::<Need>("{}").expect("empty").task, Task::Any);
}
