//! What each request must give, computed with no cache, no batch and no scheduler.

use tokenmill_device_tests::sim::{SimText, content, whole_digest};
use tokenmill_engine::constraint::Held;
use tokenmill_engine::{Numbers, RepeatRule, Request, Rows, Scored, StopReason};
use tokenmill_ir::sampling::{SampleRow, SampleScratch, sample, score};
use tokenmill_ir::{FIRST_MEDIA, SamplingParams, TokenId};

use crate::scene::Scene;

/// One generated token.
#[derive(Debug, Clone, PartialEq)]
pub struct Expected {
    pub id: TokenId,
    pub logprob: Option<f32>,
    pub top: Vec<(TokenId, f32)>,
}

/// One choice of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Course {
    /// Tokens before the end, the end-of-sequence token not among them.
    pub tokens: Vec<Expected>,
    /// How it ends; `None`: with a row that is not a number.
    pub end: Option<StopReason>,
    /// Tokens generated, the end-of-sequence token among them.
    pub generated: u32,
}

struct Model<'a> {
    scene: &'a Scene,
    row: Vec<f32>,
    scratch: SampleScratch,
}

impl<'a> Model<'a> {
    fn new(scene: &'a Scene) -> Self {
        let vocab = scene.config.vocab as usize;
        Self { scene, row: vec![0.0; vocab], scratch: SampleScratch::new(vocab) }
    }

    /// The row after a token; false when it is not a number.
    fn logits(&mut self, digest: u64, token: TokenId) -> bool {
        SimText::row(digest, &mut self.row);
        !self.scene.nan.contains(&token)
    }
}

/// What the model takes the token at an index for.
fn taken(request: &Request, index: usize, token: TokenId) -> TokenId {
    let at = index as u32;
    let Some(inputs) = &request.inputs else { return token };
    let row = inputs.media.iter().find_map(|m| {
        let row = at.checked_sub(m.at)? as usize;
        m.rows.data.get(row).map(|x| x.to_bits())
    });
    let known = inputs.positions.len();
    let later = || if known == 0 { at } else { inputs.next + (index - known) as u32 };
    let axes = inputs.positions.get(index).copied().unwrap_or_else(|| [later(); 3]);
    let block = inputs.blocks.iter().find(|b| (b[0]..b[1]).contains(&at));
    content(row.unwrap_or(token), at, axes, block.copied().unwrap_or_default())
}

/// A prompt without its rows, which are no words.
fn words(request: &Request) -> Vec<TokenId> {
    request.prompt.iter().copied().filter(|token| *token < FIRST_MEDIA).collect()
}

/// The text of a prompt, and the digest of its last row.
fn begun(scene: &Scene, request: &Request) -> (SimText, u64) {
    let (mut text, mut digest) = (SimText::new(&scene.config.groups), 0);
    for (index, &token) in request.prompt.iter().enumerate() {
        digest = text.push(taken(request, index, token));
    }
    (text, digest)
}

/// The course of one choice.
pub fn course(scene: &Scene, request: &Request, choice: u32, longest: u32) -> Course {
    let mut model = Model::new(scene);
    let (mut text, mut digest) = begun(scene, request);
    let mut history = words(request);
    let given = history.len();
    let mut last = *request.prompt.last().expect("a prompt");
    let most = request.max_tokens.unwrap_or(longest - request.prompt.len() as u32);
    let mut course = Course { tokens: Vec::new(), end: Some(StopReason::Length), generated: 0 };
    let mut matcher = request.held.as_ref().map(Held::start);
    let mut mask = vec![0; scene.config.vocab.div_ceil(32) as usize];
    let (rules, mut added) = (request.rules_with(&scene.eos), Vec::new());
    let mut chain = request.sampling.chain;
    for index in 0..most {
        if let Some(matcher) = &mut matcher {
            matcher.mask(&mut mask).expect("something may come");
        }
        let is_number = model.logits(digest, last);
        // Of a token that alone may come nothing is computed, unless its log-probability is wanted.
        let one = matcher.is_some() && mask.iter().map(|word| word.count_ones()).sum::<u32>() == 1;
        if !is_number && (!one || request.sampling.logprobs.is_some()) {
            course.end = None;
            break;
        }
        let params = SamplingParams { choice, index, chain, ..request.sampling };
        added.clear();
        rules.add(&history, given, &mut added);
        let seen = history.len().min(params.penalty_last_n as usize);
        let unseen = history.len() - seen;
        let prompt = if params.penalises_prompt { 0 } else { given };
        let row = SampleRow {
            params: &params,
            history: &history[unseen..],
            prompt: prompt.saturating_sub(unseen),
            bias: &request.logit_bias,
            rules: &added,
            mask: if matcher.is_some() { &mask } else { &[] },
        };
        let mut top = Vec::new();
        let sampled = sample(&mut model.row, &row, &mut model.scratch, &mut top);
        assert!(sampled.valid, "the model's rows are numbers");
        if let Some(state) = chain.as_mut().and_then(|chain| chain.mirostat.as_mut()) {
            *state = state.told(sampled.surprise);
        }
        course.generated += 1;
        if !request.ignore_eos && scene.eos.contains(&sampled.token) {
            course.end = Some(StopReason::EndOfText);
            break;
        }
        let logprob = params.logprobs.map(|_| sampled.logprob);
        last = sampled.token;
        course.tokens.push(Expected { id: last, logprob, top });
        history.push(last);
        digest = text.push(taken(request, request.prompt.len() + index as usize, last));
        if let Some(matcher) = &mut matcher {
            matcher.accept(sampled.token).expect("one of those that may come");
            if matcher.is_done() {
                course.end = Some(StopReason::EndOfText);
                break;
            }
        }
        let said = &history[given..];
        if request.repeats.is_some_and(|rule| repeats(said, rule)) {
            let may_end = matcher.as_mut().is_none_or(|matcher| matcher.may_end());
            course.end = Some(if may_end { StopReason::EndOfText } else { StopReason::Length });
            break;
        }
    }
    course
}

/// Whether the last tokens are enough copies of one text.
fn repeats(tokens: &[TokenId], rule: RepeatRule) -> bool {
    let copied = |period: u32| {
        let all = (period * rule.copies) as usize;
        let tail = tokens.len().checked_sub(all).and_then(|from| tokens.get(from..));
        tail.is_some_and(|tail| tail.iter().zip(&tail[period as usize..]).all(|(a, b)| a == b))
    };
    (rule.periods.0..=rule.periods.1).any(copied)
}

/// The numbers of a request; `None` where a row is not a number.
pub fn rows(scene: &Scene, request: &Request) -> Option<Rows> {
    let mut model = Model::new(scene);
    let tokens = &request.prompt;
    let mut answer = Rows { prompt_tokens: tokens.len() as u32, ..Rows::default() };
    let mut text = SimText::new(&scene.config.groups);
    let all = || tokens.iter().enumerate().map(|(index, &token)| taken(request, index, token));
    let digests: Vec<u64> = all().map(|t| text.push(t)).collect();
    match request.numbers? {
        Numbers::Scores { top: n } => {
            for i in 1..tokens.len() {
                if !model.logits(digests[i - 1], tokens[i - 1]) {
                    return None;
                }
                let mut top = Vec::new();
                let s = score(&model.row, tokens[i], n as usize, &mut model.scratch, &mut top);
                answer.scores.push(Scored { id: tokens[i], logprob: s.logprob, top });
            }
        }
        Numbers::Logits { from } => {
            answer.width = scene.config.vocab as usize;
            for i in from as usize..tokens.len() {
                if !model.logits(digests[i], tokens[i]) {
                    return None;
                }
                answer.numbers.extend_from_slice(&model.row);
            }
        }
        Numbers::Hidden | Numbers::Pair { .. } | Numbers::Listed => {
            let (whole, last) = (scene.config.whole_sequences, tokens.len() - 1);
            let rows = match request.numbers? {
                Numbers::Listed => request.inputs.as_ref()?.outputs.clone(),
                _ => vec![last as u32],
            };
            answer.width = scene.config.hidden as usize;
            for row in rows.into_iter().map(|row| row as usize) {
                if scene.nan.contains(&tokens[row]) {
                    return None;
                }
                let digest = if whole { whole_digest(all()) } else { digests[row] };
                let mut numbers = vec![0.0; answer.width];
                SimText::row(digest, &mut numbers);
                answer.numbers.extend(numbers);
            }
        }
    }
    Some(answer)
}
