//! Texts answered by numbers: vectors of what they mean, and how much documents have to do with a question.

use std::collections::VecDeque;

use tokenmill_engine::{Event, Events, Refusal, Request, RequestError, Rows, cosine, relevance};
use tokenmill_ir::TokenId;
use tokenmill_text::{Special, TokenizerError};

use crate::error::Error;
use crate::model::Model;

/// Texts at the engine at once: enough to fill its steps.
const AT_ONCE: usize = 16;

impl Model {
    /// Columns of a vector; 1 where the model scores pairs of texts instead.
    pub fn width(&self) -> u32 {
        self.grammars().engine.width()
    }

    /// A vector for each text, as the model's files say vectors are made of it.
    ///
    /// # Errors
    /// [`Error::Ability`] where the model gives none; a text that is empty or does not fit.
    pub fn embed<T: AsRef<str>>(
        &self,
        texts: impl IntoIterator<Item = T>,
    ) -> Result<Vec<Vec<f32>>, Error> {
        let engine = self.engine()?;
        if engine.vocab() > 0 || engine.width() == 1 {
            return Err(self.cannot("gives no embeddings"));
        }
        let tokens = |text: T| Ok((self.plain(text.as_ref())?, None));
        let inputs = texts.into_iter().map(tokens).collect::<Result<_, Error>>()?;
        Ok(self.rows(inputs)?.into_iter().map(|row| row.numbers).collect())
    }

    /// How much each document has to do with the query: by a reranker 0 to 1, by a model that embeds the
    /// cosine of the angle between the two.
    ///
    /// # Errors
    /// [`Error::Ability`] where the model cannot; a text that is empty or does not fit.
    pub fn rerank<T: AsRef<str>>(
        &self,
        query: &str,
        documents: impl IntoIterator<Item = T>,
    ) -> Result<Vec<f32>, Error> {
        let engine = self.engine()?;
        if engine.vocab() > 0 {
            return Err(self.cannot("ranks no documents"));
        }
        let documents = documents.into_iter();
        if engine.width() == 1 {
            let encoder = self.encoder();
            let pair = |document: T| encoder.pair(query, document.as_ref());
            let inputs = documents.map(pair).collect::<Result<_, TokenizerError>>()?;
            let rows = self.rows(inputs)?;
            return Ok(rows.iter().map(|row| relevance(row.numbers.first().copied())).collect());
        }
        let mut inputs = vec![(self.plain(query)?, None)];
        for document in documents {
            inputs.push((self.plain(document.as_ref())?, None));
        }
        let rows = self.rows(inputs)?;
        let query = rows.first().map(|row| row.numbers.clone()).unwrap_or_default();
        Ok(rows.iter().skip(1).map(|row| cosine(&query, &row.numbers)).collect())
    }

    /// A text as data: control tokens spelled out in it are text.
    fn plain(&self, text: &str) -> Result<Vec<TokenId>, Error> {
        Ok(self.encoder().prompt(text, Special::Plain)?)
    }

    /// The numbers of texts, in order; of a pair is told where its second text begins.
    fn rows(&self, inputs: Vec<(Vec<TokenId>, Option<u32>)>) -> Result<Vec<Rows>, Error> {
        let engine = self.engine()?;
        let mut open: VecDeque<Events> = VecDeque::new();
        let mut rows = Vec::with_capacity(inputs.len());
        for (tokens, second) in inputs {
            let numbers = match second {
                Some(second) => tokenmill_engine::Numbers::Pair { second },
                None => tokenmill_engine::Numbers::Hidden,
            };
            let request = Request { numbers: Some(numbers), ..Request::new(tokens) };
            loop {
                if open.len() < AT_ONCE {
                    match engine.submit(request.clone()) {
                        Ok(events) => {
                            open.push_back(events);
                            break;
                        }
                        // A full queue is waited for as long as some of it is ours.
                        Err(Refusal::QueueFull { .. }) if !open.is_empty() => {}
                        Err(refusal) => return Err(refusal.into()),
                    }
                }
                if let Some(first) = open.pop_front() {
                    rows.push(row(first)?);
                }
            }
        }
        for events in open {
            rows.push(row(events)?);
        }
        Ok(rows)
    }
}

fn row(events: Events) -> Result<Rows, Error> {
    for event in events {
        match event {
            Event::Rows(rows) => return Ok(rows),
            Event::Failed(error) => return Err(error.into()),
            _ => {}
        }
    }
    Err(RequestError::ShutDown.into())
}
