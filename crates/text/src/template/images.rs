//! Images for templates that write nothing where one comes, as those of models that were made for text
//! do: a mark stands for each as if it were a text, and goes when the prompt is written.

use std::ops::Range;

use serde_json::Value as Json;

use super::TemplateError;
use super::forms::part;
use super::messages::MARKS;

/// Whether a part of a message is an image.
fn is_image(part: &Json) -> bool {
    part.get("type").is_some_and(|kind| kind == "image")
}

/// The parts of a message.
fn parts(message: &Json) -> impl Iterator<Item = &Json> {
    message.get("content").and_then(Json::as_array).into_iter().flatten()
}

/// The messages with a mark as the text of each image, and that mark; none without images.
pub(super) fn as_texts(messages: &[Json]) -> Result<Option<(Vec<Json>, char)>, TemplateError> {
    if !messages.iter().flat_map(parts).any(is_image) {
        return Ok(None);
    }
    let whole = |message: &Json| message.get("content").and_then(Json::as_str).map(str::to_owned);
    let of_part = |part: &Json| part.get("text").and_then(Json::as_str).map(str::to_owned);
    let mut texts: Vec<String> = messages.iter().filter_map(whole).collect();
    texts.extend(messages.iter().flat_map(parts).filter_map(of_part));
    let is_free = |mark: &char| !texts.iter().any(|text| text.contains(*mark));
    let mark = MARKS.rev().find(is_free).ok_or(TemplateError::NoMarkLeft)?;
    let mut marked = messages.to_vec();
    for message in &mut marked {
        let parts = message.get_mut("content").and_then(Json::as_array_mut);
        for image in parts.into_iter().flatten().filter(|part| is_image(part)) {
            *image = part(&mark.to_string());
        }
    }
    Ok(Some((marked, mark)))
}

/// Takes the marks out of a text and of ranges in it: where each was, ascending.
pub(super) fn taken_out(text: &mut String, ranges: &mut [Range<usize>], mark: char) -> Vec<usize> {
    let found: Vec<usize> = text.match_indices(mark).map(|(at, _)| at).collect();
    let moved = |at: usize| at - mark.len_utf8() * found.partition_point(|mark| *mark < at);
    for range in ranges {
        *range = moved(range.start)..moved(range.end);
    }
    text.retain(|c| c != mark);
    found.iter().map(|at| moved(*at)).collect()
}
