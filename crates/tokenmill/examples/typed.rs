//! An answer that is a value, shown while it is made: `cargo run --release --example typed -- smollm2`.

use tokenmill::schemars::{self, JsonSchema};
use tokenmill::{Error, Model, Part};

#[derive(JsonSchema, serde::Deserialize)]
struct Recipe {
    title: String,
    minutes: u16,
    /// At most five.
    #[schemars(length(max = 5))]
    ingredients: Vec<String>,
}

fn main() -> Result<(), Error> {
    let model = Model::open(&std::env::args().nth(1).unwrap_or("smollm2".to_owned()))?;
    let mut chat = model.chat();
    for part in chat.stream_for::<Recipe>("How do I make pancakes?")? {
        match part? {
            Part::Partial(known) => println!("{known}"),
            Part::Whole(Recipe { title, minutes, ingredients }) => {
                println!("{title}: {minutes} minutes, of {}", ingredients.join(", "));
            }
        }
    }
    Ok(())
}
