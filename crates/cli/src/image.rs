//! Images on the command line: files that a question is about.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use tokenmill_engine::start::Served;
use tokenmill_engine::{Eyes, Inputs, NOBODY};
use tokenmill_media::{Ceilings, Picture, decode};
use tokenmill_text::Special;

use crate::answer::tokenizer;
use crate::failure::Failure;

/// The pixels of a file.
///
/// # Errors
/// It cannot be read, is too large, or no image of a format that is read.
pub fn read(path: &Path) -> Result<Picture, Failure> {
    let failed = |e: &dyn std::fmt::Display| {
        Failure::new(format!("cannot show the image {}", path.display()), e)
    };
    let ceilings = Ceilings::default();
    let length = std::fs::metadata(path).map_err(|e| failed(&e))?.len();
    if length > ceilings.bytes as u64 {
        let most = ceilings.bytes;
        return Err(failed(&format!("it has {length} bytes, more than the {most} allowed")));
    }
    let file = std::fs::read(path).map_err(|e| failed(&e))?;
    decode(&file, &ceilings).map_err(|e| failed(&e))
}

/// How a model sees images.
///
/// # Errors
/// It does not.
pub fn eyes(served: &Served, name: &str) -> Result<Eyes, Failure> {
    let what = || format!("{name} sees no images");
    let Some(sight) = served.sight.clone() else {
        return Err(Failure::new(what(), "the model reads text only")
            .fix(format!("tokenmill run {name} \"your question\"")));
    };
    Eyes::new(sight).map_err(|e| Failure::new(what(), e))
}

/// A question about so many images, as templates want it.
pub fn question(images: usize, text: &str) -> Value {
    if images == 0 {
        return json!({ "role": "user", "content": text });
    }
    let image = json!({ "type": "image" });
    let mut parts = vec![image; images];
    parts.push(json!({ "type": "text", "text": text }));
    json!({ "role": "user", "content": parts })
}

/// A prompt with its images.
///
/// # Errors
/// The model does not take one of them.
pub fn shown(
    served: &Served,
    eyes: Option<&Eyes>,
    tokens: Vec<u32>,
    pictures: &[Picture],
) -> Result<(Vec<u32>, Option<Arc<Inputs>>), Failure> {
    let Some(eyes) = eyes.filter(|_| !pictures.is_empty()) else { return Ok((tokens, None)) };
    let tokenizer = tokenizer(served)?;
    let encode = |text: &str| tokenizer.encode(text, Special::Parse).map_err(|e| e.to_string());
    let found = eyes.prompt(&served.engine, &tokens, pictures, (&encode, NOBODY));
    let (tokens, inputs) = found.map_err(|e| Failure::new("cannot show the images", e))?;
    Ok((tokens, Some(Arc::new(inputs))))
}
