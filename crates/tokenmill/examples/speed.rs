//! How fast an answer comes, as one line of JSON: `cargo run --release --example speed -- MODEL QUESTION TOKENS`.

use std::time::Instant;

use tokenmill::serde_json::json;
use tokenmill::{Error, Model, sampling_of};

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or("smollm2".to_owned());
    let question = args.next().unwrap_or("Why is the sky blue?".to_owned());
    let tokens: u32 = args.next().and_then(|text| text.parse().ok()).unwrap_or(200);
    let model = Model::open(&name)?;
    let mut chat = model.chat();
    chat.sampling = sampling_of(json!({ "temperature": 0, "max_tokens": tokens }))?;
    let begun = Instant::now();
    let mut times = Vec::new();
    let mut stream = chat.stream(&question)?;
    for piece in &mut stream {
        piece?;
        times.push(begun.elapsed().as_secs_f64());
    }
    let generated = f64::from(stream.ending().1.completion_tokens);
    let (first, last) =
        (times.first().copied().unwrap_or(0.0), times.last().copied().unwrap_or(0.0));
    let rate = (generated - 1.0) / (last - first);
    println!(
        "{}",
        json!({ "first_token_s": first, "tok_s": rate, "completion_tokens": generated })
    );
    Ok(())
}
