//! One question, its answer as it comes: `cargo run --release --example chat -- smollm2 "Why is the sky blue?"`.

use std::io::Write;

use tokenmill::{Error, Model};

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or("smollm2".to_owned());
    let question = args.next().unwrap_or("Why is the sky blue?".to_owned());
    let model = Model::open(&name)?;
    let mut chat = model.chat();
    chat.system("Answer in one sentence.");
    for piece in chat.stream(&question)? {
        print!("{}", piece?.text());
        let _ = std::io::stdout().flush();
    }
    println!();
    let more = chat.ask("And at sunset?")?;
    println!("{} [{} tokens]", more.text, more.usage.completion_tokens);
    Ok(())
}
