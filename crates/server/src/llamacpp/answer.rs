//! Answers as llama.cpp's server gives them: an object of everything, or events whose last one is that.

use serde_json::{Map, Value, json};
use tokenmill_engine::{Divergence, StopReason, TokenInfo, TopToken, Usage};
use tokenmill_ir::TokenId;
use tokenmill_output::Piece;

use super::error_body;
use super::settings::settings;
use crate::ask::{Ask, Choice, Generate, Head, MakeWriter, Took, Writer};
use crate::error::ApiError;
use crate::openai::answer::told;

/// There are no slots here: any place.
const NO_SLOT: i32 = -1;

/// What a request says of how it is answered.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Form {
    /// As it comes.
    pub stream: bool,
    /// The prompt is computed, and nothing is told behind it.
    pub reads_only: bool,
    /// Its tokens are told with a whole answer.
    pub with_tokens: bool,
    /// All that is told of it; empty: everything.
    pub fields: Vec<String>,
    /// What `generation_settings` tells beside how it is sampled.
    pub asked: Value,
}

/// A request for text whose answer has that form.
pub fn answered(ask: Generate, form: Form) -> Ask {
    let stream = form.stream;
    let writer: MakeWriter = Box::new(move |head| Box::new(Answer::new(form, head)));
    Ask::Generate { ask: Box::new(ask), stream, writer }
}

/// A choice under way.
#[derive(Debug, Clone, Default)]
struct Begun {
    /// Tokens so far.
    count: usize,
    /// Tokens of which nothing was told yet.
    untold: Vec<TokenInfo>,
    has_new_line: bool,
    finish: Option<StopReason>,
}

/// Writes one answer.
#[derive(Debug)]
pub struct Answer {
    form: Form,
    head: Head,
    choices: Vec<Begun>,
    /// Of prompts that were answered.
    usages: Vec<Usage>,
    took: Took,
    /// Warnings that came with the end.
    late: Vec<String>,
}

/// All that an object of everything says of one choice.
struct Said<'a> {
    text: &'a str,
    tokens: Vec<TokenId>,
    count: usize,
    has_new_line: bool,
    finish: Option<&'a StopReason>,
}

impl Answer {
    /// An answer with that head.
    pub fn new(form: Form, head: Head) -> Self {
        let choices = vec![Begun::default(); head.all_choices()];
        let usages = vec![Usage::default(); head.prompts];
        Self { form, choices, usages, head, took: Took::default(), late: Vec::new() }
    }

    fn prompt_of(&self, index: usize) -> usize {
        index / (self.head.choices as usize).max(1)
    }

    /// The object of everything.
    fn all(&self, index: usize, said: &Said<'_>) -> Value {
        let prompt = self.prompt_of(index);
        let usage = self.usages.get(prompt).copied().unwrap_or_default();
        // (Told one by one they may lack the token that ends the answer.)
        let predicted = match (self.form.reads_only, self.head.choices) {
            (true, _) => 0,
            (false, 1) => usage.completion_tokens as usize,
            (false, _) => said.count,
        };
        let (stop_type, word) = match said.finish {
            Some(StopReason::EndOfText | StopReason::Calls) => ("eos", ""),
            Some(StopReason::StopText(word)) => ("word", word.as_str()),
            Some(StopReason::Length) => ("limit", ""),
            None => ("none", ""),
        };
        let most = self.head.sampling.max_tokens.unwrap_or(u32::MAX) as usize;
        let is_cut = said.finish == Some(&StopReason::Length) && !self.form.reads_only;
        let mut all = json!({
            "index": index,
            "content": said.text,
            "tokens": said.tokens,
            "id_slot": NO_SLOT,
            "stop": true,
            "model": self.head.model,
            "tokens_predicted": predicted,
            "tokens_evaluated": usage.prompt_tokens,
            "generation_settings": self.settings(),
            "prompt": self.head.told_prompts.get(prompt),
            "has_new_line": said.has_new_line,
            "truncated": is_cut && predicted < most,
            "stop_type": stop_type,
            "stopping_word": word,
            "tokens_cached": usage.cached_tokens,
            "timings": timings(usage, predicted, self.took),
        });
        let warnings = [&self.head.warnings[..], &self.late].concat();
        if !warnings.is_empty() {
            all["warnings"] = json!(warnings);
        }
        all
    }

    /// What of it is wanted.
    fn wanted(&self, all: Value) -> Value {
        if self.form.fields.is_empty() {
            return all;
        }
        let found = |path: &String| {
            let value = path.split('/').try_fold(&all, |value, name| value.get(name))?;
            Some((path.clone(), value.clone()))
        };
        Value::Object(self.form.fields.iter().filter_map(found).collect::<Map<_, _>>())
    }

    fn settings(&self) -> Value {
        let mut all = settings(&self.head.sampling);
        if self.form.reads_only {
            (all["n_predict"], all["max_tokens"]) = (0.into(), 0.into());
        }
        for (name, value) in self.form.asked.as_object().into_iter().flatten() {
            all[name] = value.clone();
        }
        all
    }

    /// The object of one choice of a whole answer.
    fn whole_choice(&self, index: usize, choice: &Choice) -> Value {
        let text = if self.form.reads_only { String::new() } else { choice.text() };
        let tokens = choice.tokens.iter().map(|token| token.id);
        let tokens = tokens.filter(|_| self.form.with_tokens && !self.form.reads_only).collect();
        let said = Said {
            text: &text,
            tokens,
            count: choice.tokens.len(),
            has_new_line: text.contains('\n'),
            finish: choice.finish.as_ref(),
        };
        let mut all = self.all(index, &said);
        if self.head.logprobs && !self.form.reads_only {
            all["completion_probabilities"] = probabilities(&choice.tokens);
        }
        self.wanted(all)
    }
}

impl Writer for Answer {
    fn head(&self) -> &Head {
        &self.head
    }

    fn open(&mut self, _: &mut String) {}

    fn piece(&mut self, index: usize, piece: &Piece, tokens: &[TokenInfo], out: &mut String) {
        let Some(choice) = self.choices.get_mut(index) else { return };
        choice.count += tokens.len();
        choice.untold.extend_from_slice(tokens);
        let text = piece.text();
        if text.is_empty() || self.form.reads_only {
            return;
        }
        choice.has_new_line |= text.contains('\n');
        let new = std::mem::take(&mut choice.untold);
        let ids: Vec<TokenId> = new.iter().map(|token| token.id).collect();
        let mut chunk = json!({
            "index": index,
            "content": text,
            "tokens": ids,
            "stop": false,
            "id_slot": NO_SLOT,
            "tokens_predicted": choice.count,
        });
        if self.head.logprobs {
            chunk["completion_probabilities"] = probabilities(&new);
        }
        push(out, &chunk);
    }

    fn warn(&mut self, _: usize, warning: String) {
        self.late.push(warning);
    }

    fn done(&mut self, index: usize, finish: &StopReason, _: &mut String) {
        if let Some(choice) = self.choices.get_mut(index) {
            choice.finish = Some(finish.clone());
        }
    }

    fn prefix(&mut self, _: usize, _: Option<&Divergence>, _: &mut String) {}

    /// A prompt's choices end here, where all is known of them.
    fn counted(&mut self, prompt: usize, usage: Usage, out: &mut String) {
        if let Some(known) = self.usages.get_mut(prompt) {
            *known = usage;
        }
        for choice in 0..self.head.choices {
            let index = self.head.index(prompt, choice);
            let Some(choice) = self.choices.get(index).cloned() else { continue };
            let tokens = choice.untold.iter().map(|token| token.id);
            let said = Said {
                text: "",
                tokens: tokens.filter(|_| !self.form.reads_only).collect(),
                count: choice.count,
                has_new_line: choice.has_new_line,
                finish: choice.finish.as_ref(),
            };
            push(out, &self.wanted(self.all(index, &said)));
        }
    }

    fn close(&mut self, _: Usage, _: &mut String) {}

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        push(out, &error_body(error));
    }

    fn took(&mut self, took: Took) {
        self.took = took;
    }

    fn wants_tokens(&self) -> bool {
        true
    }

    /// An object, or a list where there are several prompts or choices.
    fn whole(&mut self, choices: &[Choice], _: Usage) -> Value {
        let all = choices.iter().enumerate();
        let mut all: Vec<Value> =
            all.map(|(index, choice)| self.whole_choice(index, choice)).collect();
        match all.len() {
            1 => all.remove(0),
            _ => all.into(),
        }
    }
}

/// One event. JSON escapes line breaks: an event is one line.
fn push(out: &mut String, chunk: &Value) {
    out.push_str("data: ");
    out.push_str(&chunk.to_string());
    out.push_str("\n\n");
}

/// How long it took, milliseconds, and tokens a second; those of several prompts in one request are its own.
fn timings(usage: Usage, predicted: usize, took: Took) -> Value {
    let prompt = usage.prompt_tokens.saturating_sub(usage.cached_tokens);
    let of = |count: f64, seconds: f64| {
        let per_second = if seconds > 0.0 { count / seconds } else { 0.0 };
        let per_token = if count > 0.0 { seconds * 1e3 / count } else { 0.0 };
        (seconds * 1e3, per_token, per_second)
    };
    let (prompt_ms, prompt_each, prompt_rate) = of(f64::from(prompt), took.prompt.as_secs_f64());
    let (answer_ms, answer_each, answer_rate) = of(predicted as f64, took.answer.as_secs_f64());
    let mut timings = json!({
        "cache_n": usage.cached_tokens,
        "prompt_n": prompt,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_each,
        "prompt_per_second": prompt_rate,
        "predicted_n": predicted,
        "predicted_ms": answer_ms,
        "predicted_per_token_ms": answer_each,
        "predicted_per_second": answer_rate,
    });
    let drafted = usage.accepted_drafts + usage.rejected_drafts;
    if drafted > 0 {
        timings["draft_n"] = drafted.into();
        timings["draft_n_accepted"] = usage.accepted_drafts.into();
    }
    timings
}

/// Tokens with their log-probabilities and alternatives: the model's own, before any sampler.
fn probabilities(tokens: &[TokenInfo]) -> Value {
    let one = |id: TokenId, bytes: &[u8], logprob: f32| {
        let text = String::from_utf8_lossy(bytes);
        json!({ "id": id, "token": text, "bytes": bytes, "logprob": told(logprob) })
    };
    let all = |token: &TokenInfo| {
        let mut value = one(token.id, &token.bytes, token.logprob.unwrap_or(f32::NEG_INFINITY));
        let top = |t: &TopToken| one(t.id, &t.bytes, t.logprob);
        value["top_logprobs"] = token.top.iter().map(top).collect();
        value
    };
    tokens.iter().map(all).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn answer(form: Form, choices: u32) -> Answer {
        let head = Head {
            model: "m".into(),
            prompts: 1,
            choices,
            told_prompts: vec!["p".into()],
            warnings: vec!["w".into()],
            ..Head::default()
        };
        let mut answer = Answer::new(form, head);
        let time = Duration::from_millis;
        answer.took(Took { waited: time(1), prompt: time(20), answer: time(300) });
        answer
    }

    fn token(id: u32) -> TokenInfo {
        TokenInfo { id, bytes: b"a".to_vec(), logprob: Some(-0.5), top: Vec::new() }
    }

    fn usage(completion_tokens: u32) -> Usage {
        Usage { prompt_tokens: 9, cached_tokens: 4, completion_tokens, ..Usage::default() }
    }

    #[test]
    fn a_stream_ends_with_all_that_a_whole_answer_says() {
        let mut stream = answer(Form::default(), 1);
        let mut out = String::new();
        stream.piece(0, &Piece::Text(String::new()), &[token(1)], &mut out);
        assert!(out.is_empty(), "half a character is told with the other half");
        stream.piece(0, &Piece::Text("a\n".into()), &[token(2)], &mut out);
        stream.done(0, &StopReason::StopText("x".into()), &mut out);
        stream.counted(0, usage(3), &mut out);
        let events: Vec<Value> = out
            .split("\n\n")
            .filter_map(|event| event.strip_prefix("data: "))
            .map(|data| serde_json::from_str(data).unwrap())
            .collect();
        assert_eq!((events.len(), &events[0]["tokens"]), (2, &json!([1, 2])));
        let mut whole = answer(Form::default(), 1);
        whole.counted(0, usage(3), &mut String::new());
        let choice = Choice {
            pieces: vec![Piece::Text("a\n".into())],
            finish: Some(StopReason::StopText("x".into())),
            ..Choice::default()
        };
        let whole = whole.whole(&[choice], usage(3));
        for last in [&events[1], &whole] {
            assert_eq!((&last["stop"], &last["stop_type"]), (&json!(true), &json!("word")));
            assert_eq!(
                (&last["stopping_word"], &last["has_new_line"]),
                (&json!("x"), &json!(true))
            );
            assert_eq!(
                (&last["tokens_predicted"], &last["tokens_evaluated"]),
                (&json!(3), &json!(9))
            );
            let timings = &last["timings"];
            assert_eq!((&timings["cache_n"], &timings["prompt_n"]), (&json!(4), &json!(5)));
            assert_eq!(
                (&timings["predicted_n"], &timings["predicted_per_second"]),
                (&json!(3), &json!(10.0))
            );
            assert_eq!((&last["warnings"], &last["prompt"]), (&json!(["w"]), &json!("p")));
        }
    }

    #[test]
    fn several_choices_are_a_list_and_fields_are_picked() {
        let fields = vec!["content".into(), "timings/predicted_n".into(), "nothing".into()];
        let mut whole = answer(Form { fields, ..Form::default() }, 2);
        whole.counted(0, usage(5), &mut String::new());
        let choice = |count: usize| Choice { tokens: vec![token(7); count], ..Choice::default() };
        let found = whole.whole(&[choice(2), choice(3)], usage(5));
        let one = |count: usize| json!({ "content": "", "timings/predicted_n": count });
        assert_eq!(found, json!([one(2), one(3)]));
    }

    #[test]
    fn a_prompt_that_is_only_read_says_nothing() {
        let mut read = answer(Form { reads_only: true, ..Form::default() }, 1);
        let mut out = String::new();
        read.piece(0, &Piece::Text("a".into()), &[token(2)], &mut out);
        read.done(0, &StopReason::Length, &mut out);
        assert!(out.is_empty());
        read.counted(0, usage(1), &mut out);
        let last: Value = serde_json::from_str(out.trim_start_matches("data: ")).unwrap();
        assert_eq!((&last["tokens_predicted"], &last["tokens"]), (&json!(0), &json!([])));
        assert_eq!((&last["truncated"], &last["stop_type"]), (&json!(false), &json!("limit")));
    }
}
