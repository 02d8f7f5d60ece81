//! Resolves a model name and prints the path: `cargo run --example resolve -- smollm2`.

use tokenmill_store::{Progress, Store, StoreEnv};

fn main() {
    let store = Store::new(StoreEnv::from_vars(std::env::vars()));
    let text = std::env::args().nth(1).unwrap_or_else(|| "smollm2".to_string());
    let mut on = |p: Progress<'_>| {
        if !matches!(p, Progress::Bytes { .. } | Progress::Verify { .. }) {
            eprintln!("{p:?}");
        }
    };
    match store.name(&text).and_then(|name| store.resolve(&name, &mut on)) {
        Ok(model) => println!("{} ({} bytes)", model.path.display(), model.bytes()),
        Err(error) => eprintln!("{error}"),
    }
}
