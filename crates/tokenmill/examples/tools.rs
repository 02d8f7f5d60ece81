//! A closure that the model calls: `cargo run --release --example tools -- qwen3-0.6b`.

use tokenmill::schemars::{self, JsonSchema};
use tokenmill::{Error, Model, Piece};

#[derive(JsonSchema, serde::Deserialize)]
struct Place {
    town: String,
}

fn main() -> Result<(), Error> {
    let model = Model::open(&std::env::args().nth(1).unwrap_or("qwen3-0.6b".to_owned()))?;
    let mut chat = model.chat();
    chat.tool("temperature", "The temperature in a town now, in °C.", |place: Place| match place
        .town
        .as_str()
    {
        "" => Err("which town?".into()),
        town => Ok(10 + town.len()),
    });
    for piece in chat.stream("How warm is it in Berlin?")? {
        match piece? {
            Piece::Text(text) => print!("{text}"),
            Piece::Call { name, arguments } => println!("→ {name} {arguments}"),
            Piece::Found { text, .. } => println!("← {text}"),
            Piece::Reasoning(_) => {}
        }
    }
    Ok(())
}
