//! An answer that is broken off: `cargo run --release --example stop -- smollm2`. A dropped stream computes
//! nothing more, and another thread may go on asking.

use tokenmill::{Error, Model, Sampling};

fn main() -> Result<(), Error> {
    let model = Model::open(&std::env::args().nth(1).unwrap_or("smollm2".to_owned()))?;
    let sampling = Sampling { seed: Some(1), max_tokens: Some(500), ..Sampling::default() };
    let other = model.clone();
    let thread = std::thread::spawn(move || other.complete("Two plus two is", &sampling)?.finish());
    let text: Result<String, Error> =
        model.complete("Once upon a time", &Sampling::default())?.take(20).collect();
    println!("{}…", text?);
    if let Ok(answer) = thread.join() {
        println!("{}", answer?.text);
    }
    Ok(())
}
