//! Texts answered by numbers instead of text: handed to the engine a few at a time, in order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokenmill_engine::{
    Cancel, Event, Refusal, Request, RequestError, Rows, Scored, Viewer, cosine, relevance,
};
use tokenmill_ir::TokenId;
use tokenmill_text::{Special, TokenizerError};
use tokio::sync::{oneshot, watch};

use crate::ask::{Found, Item, Measure, Numbers, NumbersHead, Prompt};
use crate::error::ApiError;
use crate::images::{Image, unseen};
use crate::keys::Key;
use crate::prepare::{not_encoded, reach, tokens};
use crate::requests::{Seen, keeper};
use crate::seeing::Album;
use crate::shared::{Model, Phase, Shared, reached};
use crate::shares::Party;
use crate::workshop::Wanted;

/// Texts of one request at the engine at once: enough to fill its steps, few enough to leave its
/// queue to others.
const AT_ONCE: usize = 16;

/// Texts to be measured, checked and tokenised.
pub struct Measured {
    /// Who measures them.
    pub model: Model,
    /// Tokens of each text, images left out.
    pub inputs: Vec<Vec<TokenId>>,
    /// The client's name for who asks.
    pub user: Option<String>,
    /// How long it may take.
    pub timeout: Option<Duration>,
    head: NumbersHead,
    /// Images among the texts, and their places among all.
    album: Option<(Album, Vec<usize>)>,
    /// Where the second text of each begins, if its tokens are of another type; empty: of none.
    seconds: Vec<Option<u32>>,
    meaning: Meaning,
}

/// What becomes of the model's rows.
enum Meaning {
    /// They are vectors, of which so many columns are kept.
    Vectors(Option<u32>),
    /// Each is a score.
    Scores,
    /// The first is of the query, whose angle to each other counts.
    Angles,
}

/// What a model cannot do.
fn cannot(model: &str, what: &str) -> ApiError {
    ApiError::unsupported("model", format!("the model {model:?} {what}"))
}

const NO_VECTORS: &str = "gives no embeddings";
const NO_RANKS: &str = "ranks no documents";

/// Checks a model that is not in memory: nobody makes room for one that cannot do what is asked.
///
/// # Errors
/// 400 for such a model.
pub fn check_ability(shared: &Shared, ask: &Numbers, key: Option<&Key>) -> Result<(), ApiError> {
    let residents = &shared.residents;
    let told = ask.model.as_deref().and_then(|name| residents.found(Some(name)));
    let told = told.filter(|told| told.there.is_none());
    // (Of models that are not for a key its holder learns nothing.)
    let told = told.filter(|told| key.is_none_or(|key| key.may_use(&told.names())));
    let Some((can, told)) = told.and_then(|told| Some((residents.abilities(&told)?, told))) else {
        return Ok(());
    };
    match ask.measure {
        Measure::Embed { .. } if !can.embeddings => Err(cannot(&told.listed.id, NO_VECTORS)),
        Measure::Rank { .. } if !can.rerank => Err(cannot(&told.listed.id, NO_RANKS)),
        _ => Ok(()),
    }
}

/// Checks and tokenises texts to be measured.
///
/// # Errors
/// 400 of the request.
pub fn prepare(
    shared: &Shared,
    model: Model,
    ask: Numbers,
    warnings: Vec<String>,
    wanted: Wanted<'_>,
) -> Result<Measured, ApiError> {
    let engine = &model.served.engine;
    let (scores, gives_text) = (engine.width() == 1, engine.vocab() > 0);
    let encoder = model.served.tokenizer.within(reach(&model, wanted));
    // The text is data: control tokens spelled out in it are text.
    let plain = |text: &str| encoder.prompt(text, Special::Plain);
    let cannot = |what: &str| Err(cannot(model.served.name(), what));
    let mut album = None;
    let (inputs, seconds, meaning) = match ask.measure {
        Measure::Embed { .. } if gives_text || scores => return cannot(NO_VECTORS),
        Measure::Rank { .. } if gives_text => return cannot(NO_RANKS),
        Measure::Embed { inputs, dimensions } => {
            if let Some(columns) = dimensions.filter(|n| *n > engine.width()) {
                let most = engine.width();
                let message = format!("dimensions is {columns}, it must be at most {most}");
                return Err(ApiError::bad("dimensions", message));
            }
            let tokens = |prompt| match prompt {
                Prompt::Tokens(ids) => Ok(ids),
                Prompt::Text(text) => plain(&text),
                mixed @ Prompt::Mixed(_) => tokens(mixed, &encoder, Special::Plain),
            };
            let (texts, images) = apart(inputs);
            album = images_of(shared, &model, &images)?;
            let (places, texts): (Vec<usize>, Vec<Prompt>) = texts.into_iter().unzip();
            let all = texts.len() + images.len();
            let inputs: Result<Vec<_>, _> = texts.into_iter().map(tokens).collect();
            let inputs = inputs.map_err(|e| not_encoded(e, &model, "input"))?;
            check(&model, &inputs, |i| path("input", places[i], all))?;
            (inputs, Vec::new(), Meaning::Vectors(dimensions))
        }
        Measure::Rank { query, documents } => {
            let encoded: Result<Vec<_>, TokenizerError> = match scores {
                true => documents.iter().map(|d| encoder.pair(&query, d)).collect(),
                false => {
                    let texts = std::iter::once(&query).chain(&documents);
                    texts.map(|text| Ok((plain(text)?, None))).collect()
                }
            };
            let encoded = encoded.map_err(|e| not_encoded(e, &model, "documents"))?;
            let (inputs, seconds): (Vec<_>, Vec<_>) = encoded.into_iter().unzip();
            let of_documents = if scores { &inputs[..] } else { &inputs[1..] };
            check(&model, of_documents, |i| path("documents", i, of_documents.len()))?;
            check(&model, &inputs[..1], |_| "query".to_owned())?;
            (inputs, seconds, if scores { Meaning::Scores } else { Meaning::Angles })
        }
    };
    let (ticket, name) = (shared.ticket(), model.served.name().to_owned());
    let head = NumbersHead { ticket, model: name, warnings };
    let Numbers { user, timeout, .. } = ask;
    Ok(Measured { model, inputs, user, timeout, head, album, seconds, meaning })
}

type Placed<T> = Vec<(usize, T)>;

/// Texts and images, with their places.
fn apart(inputs: Vec<Item>) -> (Placed<Prompt>, Placed<Image>) {
    let (mut texts, mut images) = (Vec::new(), Vec::new());
    for (place, item) in inputs.into_iter().enumerate() {
        match item {
            Item::Text(text) => texts.push((place, text)),
            Item::Image(image) => images.push((place, image)),
        }
    }
    (texts, images)
}

/// Images that become vectors beside texts, looked at as far as their headers.
fn images_of(
    shared: &Shared,
    model: &Model,
    images: &[(usize, Image)],
) -> Result<Option<(Album, Vec<usize>)>, ApiError> {
    if let Some((_, image)) = images.first().filter(|_| !model.sees()) {
        return Err(unseen(image, model.served.name()));
    }
    let all: Vec<&Image> = images.iter().map(|(_, image)| image).collect();
    let album = Album::of(model, &all, &shared.config.limits)?;
    Ok(album.map(|album| (album, images.iter().map(|(place, _)| *place).collect())))
}

impl Measured {
    /// Tokens of all texts, and patches of all images.
    pub fn tokens(&self) -> usize {
        let patches = self.album.iter().flat_map(|(album, _)| album.patches());
        let texts = self.inputs.iter().map(Vec::len).sum::<usize>();
        texts + patches.map(|patches| patches as usize).sum::<usize>()
    }
}

impl Meaning {
    /// What the client is told of the rows.
    fn of(&self, rows: Vec<Rows>) -> Found {
        let prompt_tokens = rows.iter().map(|row| u64::from(row.prompt_tokens)).sum();
        let rows = match (self, rows.split_first()) {
            (Self::Vectors(None), _) => rows.into_iter().map(|row| row.numbers).collect(),
            (Self::Vectors(Some(n)), _) => {
                rows.into_iter().map(|row| shortened(row.numbers, *n as usize)).collect()
            }
            (Self::Scores, _) => {
                rows.iter().map(|row| vec![relevance(row.numbers.first().copied())]).collect()
            }
            (Self::Angles, Some((query, documents))) => {
                documents.iter().map(|d| vec![cosine(&query.numbers, &d.numbers)]).collect()
            }
            (Self::Angles, None) => Vec::new(),
        };
        Found { rows, prompt_tokens }
    }
}

/// The first columns, of length 1.
fn shortened(mut numbers: Vec<f32>, columns: usize) -> Vec<f32> {
    numbers.truncate(columns);
    let length = numbers.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    if length > 0.0 {
        numbers.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
    numbers
}

/// For whom rows are computed.
#[derive(Debug, Clone)]
pub struct Who {
    /// Whose share of the engine they take.
    pub account: u64,
    /// With whom cached prompts are shared.
    pub salt: u64,
    /// How long it may take, all texts together.
    pub timeout: Option<Duration>,
    /// Where it is noted what time they took.
    pub seen: Option<Arc<Seen>>,
}

/// A text at the engine.
struct Open {
    answer: oneshot::Receiver<Result<Rows, RequestError>>,
    /// Dropping it cancels.
    _cancel: Cancel,
}

/// One of so many in a member.
fn path(name: &str, place: usize, of: usize) -> String {
    if of == 1 { name.to_owned() } else { format!("{name}[{place}]") }
}

/// 400 unless every text fits the model; `path` is where each stood.
fn check(
    model: &Model,
    inputs: &[Vec<TokenId>],
    path: impl Fn(usize) -> String,
) -> Result<(), ApiError> {
    let limit = model.most_tokens();
    for (i, tokens) in inputs.iter().enumerate() {
        let path = path(i);
        if tokens.is_empty() {
            return Err(ApiError::bad(&path, format!("{path} is empty")));
        }
        if tokens.len() > limit {
            let message = format!("{path} has {} tokens; the model takes {limit}", tokens.len());
            return Err(ApiError {
                code: Some("context_length_exceeded"),
                ..ApiError::bad(path, message)
            });
        }
    }
    Ok(())
}

/// The numbers of all texts, in order.
///
/// # Errors
/// What the engine refuses or fails on; then the others are cancelled.
pub async fn compute(
    shared: &Shared,
    measured: Measured,
    (who, party): (Who, Party),
) -> Result<(NumbersHead, Found), ApiError> {
    let Measured { model, inputs, head, album, seconds, meaning, .. } = measured;
    let wanted = |i: usize| match seconds.get(i).copied().flatten() {
        Some(second) => tokenmill_engine::Numbers::Pair { second },
        None => tokenmill_engine::Numbers::Hidden,
    };
    let inputs = inputs.into_iter().enumerate().map(|(i, tokens)| (tokens, wanted(i))).collect();
    let begun = Instant::now();
    let mut answers = all(shared, &model, inputs, who.clone()).await?;
    if let Some((album, places)) = album {
        let viewer = Viewer { account: who.account, salt: who.salt, priority: 0 };
        let timeout = left(&who, begun).timeout;
        let rows = album.rows_within(shared, &model, (viewer, party), timeout).await?;
        // (Places come in order, so that each stands where it was asked for.)
        for ((place, rows), patches) in places.into_iter().zip(rows).zip(album.patches()) {
            let (numbers, width) = (rows.data.clone(), rows.cols as usize);
            let row = Rows { numbers, width, prompt_tokens: patches, ..Rows::default() };
            answers.insert(place.min(answers.len()), row);
        }
    }
    Ok((head, meaning.of(answers)))
}

/// The log-probability of each token of these prompts but the first of each, and alternatives.
///
/// # Errors
/// As [`compute`].
pub async fn scores(
    shared: &Shared,
    model: &Model,
    prompts: Vec<Vec<TokenId>>,
    top: u32,
    who: Who,
) -> Result<Vec<Vec<Scored>>, ApiError> {
    let is_long = |prompt: &Vec<TokenId>| prompt.len() > 1;
    let long: Vec<bool> = prompts.iter().map(is_long).collect();
    let wanted = tokenmill_engine::Numbers::Scores { top };
    let inputs = prompts.into_iter().filter(is_long).map(|prompt| (prompt, wanted)).collect();
    let mut rows = all(shared, model, inputs, who).await?.into_iter();
    let mut next = |is_long| if is_long { rows.next().map(|row| row.scores) } else { None };
    Ok(long.into_iter().map(|is_long| next(is_long).unwrap_or_default()).collect())
}

/// A few at a time, in order.
async fn all(
    shared: &Shared,
    model: &Model,
    inputs: Vec<(Vec<TokenId>, tokenmill_engine::Numbers)>,
    who: Who,
) -> Result<Vec<Rows>, ApiError> {
    let begun = Instant::now();
    let mut phase = shared.phases();
    let mut open: VecDeque<Open> = VecDeque::new();
    let mut answers = Vec::with_capacity(inputs.len());
    for (tokens, numbers) in inputs {
        loop {
            let full = match open.len() < AT_ONCE {
                true => match submit(model, tokens.clone(), numbers, left(&who, begun)) {
                    Ok(one) => {
                        open.push_back(one);
                        break;
                    }
                    Err(refusal) => Some(refusal),
                },
                false => None,
            };
            match (full, open.pop_front()) {
                // A full queue is waited for as long as some of it is ours.
                (None | Some(Refusal::QueueFull { .. }), Some(first)) => {
                    answers.push(wait(first, &mut phase).await?);
                }
                (Some(refusal), _) => return Err(refusal.into()),
                (None, None) => {}
            }
        }
    }
    while let Some(first) = open.pop_front() {
        answers.push(wait(first, &mut phase).await?);
    }
    Ok(answers)
}

/// What is left of the time of who asks.
fn left(who: &Who, begun: Instant) -> Who {
    let timeout = who.timeout.map(|all| all.saturating_sub(begun.elapsed()));
    Who { timeout, ..who.clone() }
}

fn submit(
    model: &Model,
    tokens: Vec<TokenId>,
    numbers: tokenmill_engine::Numbers,
    who: Who,
) -> Result<Open, Refusal> {
    let (sender, answer) = oneshot::channel();
    let mut sender = Some(sender);
    let sink = Box::new(move |event| {
        let rows = match event {
            Event::Rows(rows) => Ok(rows),
            Event::Failed(error) => Err(error),
            _ => return true,
        };
        // Nobody waits for a cancelled one.
        sender.take().is_some_and(|sender| sender.send(rows).is_ok())
    });
    let Who { account, salt, timeout, seen } = who;
    let (numbers, timeline) = (Some(numbers), seen.as_deref().map(keeper));
    let request = Request { numbers, account, salt, timeout, timeline, ..Request::new(tokens) };
    let _cancel = model.served.engine.submit_to(request, sink)?;
    Ok(Open { answer, _cancel })
}

async fn wait(one: Open, phase: &mut watch::Receiver<Phase>) -> Result<Rows, ApiError> {
    tokio::select! {
        answer = one.answer => Ok(answer.unwrap_or(Err(RequestError::ShutDown))?),
        () = reached(phase, Phase::Stopping) => Err(RequestError::ShutDown.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_dimensions_have_length_one() {
        assert_eq!(shortened(vec![3.0, 4.0, 12.0], 2), [0.6, 0.8]);
        assert_eq!(shortened(vec![0.0, 0.0, 1.0], 2), [0.0, 0.0]);
    }

    #[test]
    fn cosines_and_sigmoids() {
        assert_eq!(cosine(&[3.0, 0.0], &[5.0, 0.0]), 1.0);
        assert_eq!(cosine(&[1.0, 0.0], &[0.0, 2.0]), 0.0);
        assert_eq!(cosine(&[0.0], &[1.0]), 0.0);
        assert_eq!(relevance(Some(0.0)), 0.5);
        assert_eq!(relevance(None), 0.0);
    }
}
