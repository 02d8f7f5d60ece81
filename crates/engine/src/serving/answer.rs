//! One generation while it runs: tokens become text, text is searched for stop strings, and events
//! go to whoever asked.

use std::sync::Arc;

use tokenmill_ir::{StepOutput, TokenId};
use tokenmill_output::{Parser, Piece};
use tokenmill_sched::SeqId;
use tokenmill_text::{Lead, StopSearch, TextStream, Tokenizer};

use crate::constraint::Hold;
use crate::draft::{ByModel, DraftMode, Drafter};
use crate::repeats::Repeats;
use crate::request::{
    Divergence, Event, Request, RequestError, StopReason, TokenInfo, TopToken, Usage,
};
use crate::serving::guide::{Ended, Guide};
use crate::serving::thought::{Seen, Thought};
use crate::serving::timeline::Ending;

/// Takes events; false means that nobody listens any more, which cancels the request.
pub type Sink = Box<dyn FnMut(Event) -> bool + Send>;

/// What is left to do for a request after an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// Other tokens come.
    Open,
    /// That choice ended; its sequence is no longer needed.
    ChoiceEnded,
    /// The last event was delivered.
    Ended,
    /// Nobody listens.
    Abandoned,
}

/// Tells reasoning and calls from text, and looks for stop strings in the text.
struct Reader {
    parser: Parser,
    stops: StopSearch,
    found: Vec<Piece>,
    /// A whole call came.
    called: bool,
    /// A stop string came: nothing after it is part of the answer.
    stopped: bool,
    /// Tokens that no piece came of yet.
    unread: u32,
}

impl Reader {
    fn push(&mut self, text: &str, out: &mut Vec<Piece>) -> Option<usize> {
        self.parser.push(text, &mut self.found);
        self.searched(out)
    }

    fn finish(&mut self, cut: bool, out: &mut Vec<Piece>) -> Option<usize> {
        self.parser.finish(cut, &mut self.found);
        let stop = self.searched(out);
        if !self.stopped {
            out.extend(Some(Piece::Text(self.stops.rest())).filter(|rest| !rest.text().is_empty()));
        }
        stop
    }

    fn searched(&mut self, out: &mut Vec<Piece>) -> Option<usize> {
        for piece in self.found.drain(..) {
            if self.stopped {
                return None;
            }
            let (text, stop, other) = match piece {
                Piece::Text(text) => {
                    let found = self.stops.push(&text);
                    (found.text, found.stop, None)
                }
                other => (self.stops.rest(), None, Some(other)),
            };
            self.called |= other == Some(Piece::CallEnd);
            out.extend(Some(Piece::Text(text)).filter(|piece| !piece.text().is_empty()));
            out.extend(other);
            if stop.is_some() {
                self.stopped = true;
                return stop;
            }
        }
        None
    }
}

struct Choice {
    seq: SeqId,
    stream: Option<TextStream>,
    reader: Option<Reader>,
    drafter: Option<Drafter>,
    by_model: Option<ByModel>,
    guide: Guide,
    /// Draft tokens that were right and are still to come as tokens.
    right: u32,
    ended: bool,
}

/// A generation.
pub(crate) struct Answer {
    sink: Sink,
    tokenizer: Option<Arc<Tokenizer>>,
    eos: Arc<[TokenId]>,
    stop: Vec<String>,
    also_end: Vec<TokenId>,
    ignore_eos: bool,
    tell_end: bool,
    seen: Seen,
    logprobs: bool,
    choices: Vec<Choice>,
    /// To be told when it starts.
    prefix: Option<Option<Divergence>>,
    /// How its last choice ended.
    ending: Option<Ending>,
    usage: Usage,
}

impl Answer {
    pub fn new(
        request: &Request,
        sink: Sink,
        tokenizer: Option<Arc<Tokenizer>>,
        eos: Arc<[TokenId]>,
    ) -> Self {
        let markers = request.reading.iter().flat_map(|reading| reading.format.markers());
        let markers = markers.filter_map(|text| tokenizer.as_ref()?.id_of(text)).collect();
        Self {
            seen: Seen { all: request.show_special, markers },
            also_end: request.also_end.clone(),
            sink,
            tokenizer,
            eos,
            stop: request.stop.clone(),
            ignore_eos: request.ignore_eos,
            tell_end: request.tell_end,
            logprobs: request.sampling.logprobs.is_some(),
            choices: Vec::with_capacity(request.choices as usize),
            prefix: None,
            ending: None,
            usage: Usage { prompt_tokens: request.prompt.len() as u32, ..Usage::default() },
        }
    }

    /// The next choice. Its drafts come from where the request says, else from what it predicts, else
    /// from `draft`.
    pub fn add_choice(&mut self, seq: SeqId, request: &Request, draft: DraftMode, vocab: u32) {
        let reader = request.reading.as_ref().map(|reading| Reader {
            parser: reading.parser(),
            stops: StopSearch::new(&self.stop),
            found: Vec::new(),
            called: false,
            stopped: false,
            unread: 0,
        });
        let stops = if reader.is_some() { &[] } else { &self.stop[..] };
        let new = |t| TextStream::new(t, stops, request.lead);
        let stream = self.tokenizer.as_deref().map(new);
        let predicted = !request.prediction.is_empty();
        let draft = if predicted { DraftMode::Suffix } else { draft };
        let draft = request.draft.unwrap_or(draft);
        let drafter = Drafter::new(draft, &request.prediction);
        let by_model = ByModel::new(draft, self.choices.len() as u32, &request.sampling);
        let hold = request.held.as_ref().map(|held| Hold::new(held, vocab));
        let limit = request.reasoning_tokens.zip(request.reading.as_ref());
        let thought = limit
            .zip(self.tokenizer.as_ref())
            .and_then(|((limit, reading), t)| Thought::new(reading, limit, t, &self.seen));
        let guide = Guide::new(hold, thought, request.repeats.map(Repeats::new));
        let (right, ended) = (0, false);
        self.choices.push(Choice { seq, stream, reader, drafter, by_model, guide, right, ended });
    }

    /// What stands above the model in a choice.
    pub fn guide(&mut self, choice: u32) -> Option<&mut Guide> {
        self.choices.get_mut(choice as usize).map(|c| &mut c.guide)
    }

    /// Whether each token's row is wanted, also of tokens that had to come.
    pub fn wants_rows(&self) -> bool {
        self.logprobs
    }

    /// Choices that are held to something, with their sequences.
    pub fn held(&mut self) -> impl Iterator<Item = (u32, SeqId, &mut Hold)> {
        let open = (0..).zip(&mut self.choices).filter(|(_, c)| !c.ended);
        open.filter_map(|(i, c)| Some((i, c.seq, c.guide.hold.as_mut()?)))
    }

    /// Sequences that generate, each with what guesses their next tokens and what stands above these.
    pub fn guessed(&mut self) -> impl Iterator<Item = (SeqId, Option<&mut Drafter>, &mut Guide)> {
        let open = self.choices.iter_mut().filter(|c| !c.ended);
        open.map(|c| (c.seq, c.drafter.as_mut(), &mut c.guide))
    }

    /// Choices that generate and whose next tokens a draft model may guess, with their sequences.
    pub fn guessed_by_model(&mut self) -> impl Iterator<Item = (u32, SeqId, &mut ByModel)> {
        let waits = |guide: &Guide| guide.forces() || guide.waits();
        let open = (0..).zip(&mut self.choices);
        let open = open.filter(move |(_, c)| !c.ended && !waits(&c.guide));
        open.filter_map(|(i, c)| Some((i, c.seq, c.by_model.as_mut()?)))
    }

    /// A draft model guessed for a choice what may not come there.
    pub fn guessed_in_vain(&mut self, choice: u32) {
        let by_model = self.choices.get_mut(choice as usize).and_then(|c| c.by_model.as_mut());
        by_model.and_then(|b| b.rate.as_mut()).into_iter().for_each(|rate| rate.saw_run(1, 0));
    }

    /// Prompt tokens.
    pub fn prompt(&self) -> usize {
        self.usage.prompt_tokens as usize
    }

    /// Verified draft tokens; whether a draft model guessed them.
    pub fn drafted(&mut self, choice: u32, tokens: u32, right: u32) -> bool {
        self.usage.rejected_drafts += tokens - right;
        let Some(choice) = self.choices.get_mut(choice as usize) else { return false };
        choice.right = right;
        let rate = choice.by_model.as_mut().and_then(|b| b.rate.as_mut());
        rate.map(|rate| rate.saw_run(tokens, right)).is_some()
    }

    /// How the choice that ended last did.
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// Sequences of all choices; those of ended ones may be gone.
    pub fn sequences(&self) -> impl Iterator<Item = SeqId> + '_ {
        self.choices.iter().map(|c| c.seq)
    }

    pub fn sequence(&self, choice: u32) -> Option<SeqId> {
        self.choices.get(choice as usize).filter(|c| !c.ended).map(|c| c.seq)
    }

    /// What the first choice found of its prompt.
    pub fn found(&mut self, prefix: Option<Divergence>) {
        self.prefix = Some(prefix);
    }

    pub fn started(&mut self, choice: u32, cached: u32) -> After {
        // The others read the first one's blocks: no hit on an earlier prompt.
        if choice == 0 {
            self.usage.cached_tokens = cached;
        }
        let heard = self.prefix.take().is_none_or(|found| (self.sink)(Event::Prefix(found)));
        if heard { After::Open } else { After::Abandoned }
    }

    /// So many tokens of the prompt came from disk for this request.
    pub fn add_disk_tokens(&mut self, tokens: u32) {
        self.usage.disk_tokens += tokens;
    }

    /// So many tokens of the prompt stay in the cache.
    pub fn leased(&mut self, tokens: u32) {
        self.usage.leased_tokens = tokens;
    }

    /// A generated token; `output` is its row in `out`.
    pub fn token(&mut self, choice: u32, token: TokenId, output: u32, out: &StepOutput) -> After {
        let Some(c) = self.choices.get_mut(choice as usize).filter(|c| !c.ended) else {
            return After::Open; // drafts beyond the end of this choice
        };
        self.usage.completion_tokens += 1;
        let ended = c.guide.tell();
        if c.right > 0 {
            c.right -= 1;
            self.usage.accepted_drafts += 1;
        }
        let ends = self.eos.contains(&token) || self.also_end.contains(&token);
        if !self.ignore_eos && ends {
            let named = self.tell_end.then(|| self.bytes(token, true));
            let info = named.map(|bytes| TokenInfo { bytes, ..self.info(token, output, out) });
            if info.is_some_and(|info| !self.tell(choice, Vec::new(), vec![info])) {
                return After::Abandoned;
            }
            return self.end(choice, StopReason::EndOfText);
        }
        let info = self.info(token, output, out);
        let text = self.text(choice, token);
        let (is_heard, stop) = self.tell_text(choice, text, info);
        if !is_heard {
            return After::Abandoned;
        }
        match (stop.and_then(|s| self.stop.get(s).cloned()), ended) {
            (Some(stop), _) => self.end(choice, StopReason::StopText(stop)),
            (None, Some(Ended::Whole)) => self.end(choice, StopReason::EndOfText),
            (None, Some(Ended::Repeats(repeated))) => {
                if !(self.sink)(Event::Repeats { choice, repeated }) {
                    return After::Abandoned;
                }
                let cut = repeated.cut;
                self.end(choice, if cut { StopReason::Length } else { StopReason::EndOfText })
            }
            (None, None) => After::Open,
        }
    }

    /// Counts tokens of what was thought: those that it came of, markers before it among them.
    fn count_reasoning(&mut self, choice: u32, pieces: &[Piece]) {
        let choice = self.choices.get_mut(choice as usize);
        let Some(reader) = choice.and_then(|c| c.reader.as_mut()) else { return };
        reader.unread += 1;
        if pieces.iter().any(|piece| matches!(piece, Piece::Reasoning(_))) {
            self.usage.reasoning_tokens += reader.unread;
        }
        if !pieces.is_empty() {
            reader.unread = 0;
        }
    }

    /// Ends a choice, and the request with the last one.
    pub fn end(&mut self, choice: u32, reason: StopReason) -> After {
        let Some(c) = self.choices.get_mut(choice as usize).filter(|c| !c.ended) else {
            return After::Open;
        };
        c.ended = true;
        c.guide = Guide::default();
        // What was right and comes after the end was computed in vain.
        self.usage.rejected_drafts += c.right;
        let piece = c.stream.as_mut().map(TextStream::finish).unwrap_or_default();
        let (mut rest, mut stop, mut called) = (Vec::new(), piece.stop, false);
        match &mut c.reader {
            Some(reader) => {
                stop = reader.push(&piece.text, &mut rest);
                stop = stop.or(reader.finish(reason == StopReason::Length, &mut rest));
                called = reader.called;
            }
            None if piece.text.is_empty() => {}
            None => rest.push(Piece::Text(piece.text)),
        }
        let reason = match stop.and_then(|s| self.stop.get(s).cloned()) {
            Some(stop) => StopReason::StopText(stop),
            None => reason,
        };
        // Whatever ended it, its calls are to be made.
        let calls = called && reason != StopReason::Length;
        let reason = if calls { StopReason::Calls } else { reason };
        self.ending = Some(Ending::of(&reason));
        if !rest.is_empty() && !self.tell(choice, rest, Vec::new()) {
            return After::Abandoned;
        }
        if !(self.sink)(Event::Done { choice, reason }) {
            return After::Abandoned;
        }
        if self.choices.iter().any(|c| !c.ended) {
            return After::ChoiceEnded;
        }
        (self.sink)(Event::Finished(self.usage));
        After::Ended
    }

    pub fn fail(&mut self, error: RequestError) {
        (self.sink)(Event::Failed(error));
    }

    fn info(&self, token: TokenId, output: u32, out: &StepOutput) -> TokenInfo {
        let bytes = self.bytes(token, self.shows(token));
        let sampled = out.sampled.get(output as usize).filter(|_| self.logprobs);
        let Some(s) = sampled else {
            return TokenInfo { id: token, bytes, logprob: None, top: Vec::new() };
        };
        let slice = s.top.0 as usize..(s.top.0 + s.top.1) as usize;
        let top = out.top.get(slice).unwrap_or_default().iter();
        let top = top.map(|&(id, logprob)| TopToken { id, bytes: self.bytes(id, true), logprob });
        TokenInfo { id: token, bytes, logprob: Some(s.logprob), top: top.collect() }
    }

    fn bytes(&self, token: TokenId, special: bool) -> Vec<u8> {
        let Some(t) = &self.tokenizer else { return Vec::new() };
        let shown = special || !t.is_special(token);
        t.token_bytes(token).filter(|_| shown).map(<[u8]>::to_vec).unwrap_or_default()
    }

    /// Whether a token is seen although it is special.
    fn shows(&self, token: TokenId) -> bool {
        self.seen.shows(token)
    }

    /// Tells pieces in order, the tokens with the first.
    fn tell(&mut self, choice: u32, pieces: Vec<Piece>, tokens: Vec<TokenInfo>) -> bool {
        let mut tokens = tokens;
        let mut tell = |piece| {
            let tokens = std::mem::take(&mut tokens);
            (self.sink)(Event::Piece { choice, piece, tokens })
        };
        match pieces.is_empty() {
            true => tell(Piece::Text(String::new())),
            false => pieces.into_iter().all(tell),
        }
    }

    /// Tells what a token's text is: whether somebody listens, and the stop string in it.
    fn tell_text(
        &mut self,
        choice: u32,
        (text, stop): (String, Option<usize>),
        token: TokenInfo,
    ) -> (bool, Option<usize>) {
        let tokens = vec![token];
        let Some(reader) = self.choices.get_mut(choice as usize).and_then(|c| c.reader.as_mut())
        else {
            let piece = Piece::Text(text);
            return ((self.sink)(Event::Piece { choice, piece, tokens }), stop);
        };
        let mut pieces = Vec::new();
        let stop = reader.push(&text, &mut pieces);
        self.count_reasoning(choice, &pieces);
        (self.tell(choice, pieces, tokens), stop)
    }

    /// Text that a token makes certain, and the stop string it completes.
    fn text(&mut self, choice: u32, token: TokenId) -> (String, Option<usize>) {
        let shown = self.shows(token);
        let choice = self.choices.get_mut(choice as usize);
        let (Some(c), Some(tokenizer)) = (choice, &self.tokenizer) else {
            return (String::new(), None);
        };
        let Some(stream) = c.stream.as_mut() else { return (String::new(), None) };
        if !(shown && tokenizer.is_special(token)) {
            let piece = stream.push(tokenizer, token);
            return (piece.text, piece.stop);
        }
        // A special token's name is text of its own: what was held back is certain before it.
        let piece = stream.finish();
        let stops = if c.reader.is_some() { &[] } else { &self.stop[..] };
        *stream = TextStream::new(tokenizer, stops, Lead::Keep);
        let name = tokenizer.token_bytes(token).unwrap_or_default();
        (piece.text + &String::from_utf8_lossy(name), piece.stop)
    }
}
