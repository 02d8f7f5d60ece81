//! Answers of Responses: each with what was asked, and behind which other it stands.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};

use rusqlite::{Connection, params};
use serde_json::Value;
use tokio::sync::Notify;

use super::objects::{parsed, signed};
use super::{Owner, Page, Paged, State, Stored, none_such};
use crate::error::ApiError;
use crate::fields::shown;

const KIND: &str = "response";

/// Most answers that stand behind one another.
const LONGEST_CHAIN: i64 = 4096;

/// How an answer is kept that is to come.
#[derive(Debug, Clone)]
pub struct Keep {
    /// Where, and whose it is.
    pub stored: Stored,
    /// What was asked, as items with ids.
    pub input: Vec<Value>,
    /// The answer that this one stands behind.
    pub previous: Option<String>,
    /// The conversation that this one goes on with.
    pub conversation: Option<String>,
    /// It is made while its client does other things.
    pub background: bool,
    /// It is kept under its own id; else it only goes on with its conversation.
    pub store: bool,
}

impl Keep {
    /// The answer is begun: it can be asked for and cancelled, of which the one who makes it is told.
    ///
    /// # Errors
    /// What the database says.
    pub fn begin(&self, id: &str, response: &Value) -> Result<Arc<Notify>, ApiError> {
        let Stored { state, owner } = &self.stored;
        state.write(|db| state.response(db, self, *owner, (id, response)))?;
        let end = Arc::<Notify>::default();
        state.behind().insert(id.to_owned(), Arc::clone(&end));
        Ok(end)
    }

    /// The answer has come to its end. One that was begun before, and cancelled or deleted meanwhile,
    /// stays so.
    ///
    /// # Errors
    /// What the database says.
    pub fn end(&self, id: &str, response: &Value, is_begun: bool) -> Result<(), ApiError> {
        let Stored { state, owner } = &self.stored;
        state.behind().remove(id);
        state.write(|db| {
            if is_begun {
                let row = params![
                    response.to_string(),
                    status_of(response),
                    signed(state.end_of_life()),
                    id
                ];
                let changed = db.execute(
                    "UPDATE objects SET body = ?, status = ?, expires = ?
                     WHERE id = ? AND kind = 'response' AND status = 'in_progress'",
                    row,
                )?;
                if changed == 0 {
                    return Ok(());
                }
            } else if self.store {
                state.response(db, self, *owner, (id, response))?;
            }
            if let (Some(talk), false) = (&self.conversation, status_of(response) == "failed") {
                let output = response["output"].as_array().cloned().unwrap_or_default();
                let both: Vec<Value> = self.input.iter().cloned().chain(output).collect();
                state.append(db, (*owner, talk), &both)?;
            }
            Ok(())
        })
    }
}

fn status_of(response: &Value) -> &str {
    response["status"].as_str().unwrap_or("completed")
}

impl State {
    fn behind(&self) -> MutexGuard<'_, HashMap<String, Arc<Notify>>> {
        self.behind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new answer.
    fn response(
        &self,
        db: &Connection,
        keep: &Keep,
        owner: Owner,
        (id, response): (&str, &Value),
    ) -> Result<(), ApiError> {
        let told = (status_of(response), response);
        self.put(db, (id, KIND, owner), told, self.end_of_life())?;
        let input = Value::from(keep.input.clone()).to_string();
        db.execute(
            "INSERT INTO turns (id, previous, conversation, input) VALUES (?, ?, ?, ?)",
            params![id, keep.previous, keep.conversation, input],
        )?;
        Ok(())
    }

    /// An answer as it is.
    ///
    /// # Errors
    /// 404.
    pub fn get_response(&self, owner: Owner, id: &str) -> Result<Value, ApiError> {
        let found = self.find(&self.db(), (id, KIND, owner))?;
        found.map(|(_, body)| parsed(&body)).ok_or_else(|| no_response(id))
    }

    /// Deletes an answer; one that is being made ends.
    ///
    /// # Errors
    /// 404.
    pub fn delete_response(&self, owner: Owner, id: &str) -> Result<(), ApiError> {
        if !self.write(|db| self.drop_one(db, (id, KIND, owner)))? {
            return Err(no_response(id));
        }
        self.let_end(id);
        Ok(())
    }

    /// Who makes an answer hears that it is to end.
    fn let_end(&self, id: &str) {
        if let Some(end) = self.behind().remove(id) {
            end.notify_one();
        }
    }

    /// Ends an answer that is made in the background; one that has ended stays as it is.
    ///
    /// # Errors
    /// 404; 400 for one that is not made so.
    pub fn cancel_response(&self, owner: Owner, id: &str) -> Result<Value, ApiError> {
        let told = self.write(|db| {
            let (status, body) =
                self.find(db, (id, KIND, owner))?.ok_or_else(|| no_response(id))?;
            let mut told = parsed(&body);
            if told["background"] != true {
                let message =
                    "only an answer that is made with \"background\": true can be cancelled";
                return Err(ApiError::bad("response_id", message));
            }
            if status == "in_progress" {
                told["status"] = "cancelled".into();
                let row = params![told.to_string(), id];
                db.execute("UPDATE objects SET status = 'cancelled', body = ? WHERE id = ?", row)?;
            }
            Ok(told)
        })?;
        self.let_end(id);
        Ok(told)
    }

    /// What was asked for an answer: of those that it stands behind all that was said, then its own.
    ///
    /// # Errors
    /// 404, and 400 for an id that is not among them.
    pub fn input_items(&self, owner: Owner, id: &str, page: &Page) -> Result<Paged, ApiError> {
        self.get_response(owner, id)?;
        let mut turns = self.turns(owner, id, usize::MAX)?;
        let last = turns.pop().ok_or_else(|| no_response(id))?;
        let before = turns.into_iter().flat_map(Turn::all);
        let all = before.chain(last.input).map(|item| {
            let id = item["id"].as_str().unwrap_or_default().to_owned();
            (id, item)
        });
        Paged::of(all.collect(), page)
    }

    /// All that was said up to an answer and in it, from the last summary on; it and those before stay
    /// for their whole time from now.
    ///
    /// # Errors
    /// 400 where one of them is not there, nothing can stand behind the last, or there are more than
    /// `most` bytes.
    pub fn said_before(&self, owner: Owner, id: &str, most: usize) -> Result<Vec<Value>, ApiError> {
        let turns = self.turns(owner, id, most)?;
        turns.last().map_or_else(|| Err(no_previous(id, true)), Turn::can_go_on)?;
        self.write(|db| turns.iter().try_for_each(|turn| self.renew(db, &turn.id)))?;
        let mut all: Vec<Value> = turns.into_iter().flat_map(Turn::all).collect();
        let summary = all.iter().rposition(|item| item["type"] == "compaction");
        all.drain(..summary.unwrap_or(0));
        Ok(all)
    }

    /// An answer and those that it stands behind, the first one first.
    fn turns(&self, owner: Owner, id: &str, most: usize) -> Result<Vec<Turn>, ApiError> {
        let db = self.db();
        let mut found = db.prepare(
            "WITH RECURSIVE chain (id, depth) AS (
               SELECT ?1, 0 UNION ALL
               SELECT t.previous, depth + 1 FROM chain JOIN turns t ON t.id = chain.id
               WHERE t.previous IS NOT NULL AND depth < ?4)
             SELECT chain.id, o.status, o.body, t.input, t.conversation
             FROM chain LEFT JOIN turns t ON t.id = chain.id
             LEFT JOIN objects o ON o.id = chain.id AND o.kind = 'response'
               AND o.owner = ?2 AND o.expires > ?3
             ORDER BY depth DESC",
        )?;
        let row = params![id, signed(owner), signed(self.now()), LONGEST_CHAIN];
        let mut rows = found.query(row)?;
        let (mut turns, mut bytes) = (Vec::new(), 0usize);
        while let Some(row) = rows.next()? {
            let turn: String = row.get(0)?;
            let (status, body): (Option<String>, Option<String>) = (row.get(1)?, row.get(2)?);
            let (input, talk): (Option<String>, Option<String>) = (row.get(3)?, row.get(4)?);
            let (Some(status), Some(body), Some(input)) = (status, body, input) else {
                return Err(no_previous(&turn, turn == id));
            };
            bytes = bytes.saturating_add(body.len()).saturating_add(input.len());
            if bytes > most {
                let message = format!("what was said before has more than {most} bytes");
                return Err(ApiError::too_long("previous_response_id", message));
            }
            turns.push(Turn { id: turn, status, body, input: list(&input), talk });
        }
        Ok(turns)
    }
}

/// One answer of several that stand behind one another.
struct Turn {
    id: String,
    status: String,
    body: String,
    input: Vec<Value>,
    talk: Option<String>,
}

impl Turn {
    /// Whether another answer can stand behind this one.
    fn can_go_on(&self) -> Result<(), ApiError> {
        let refused = |why: String| Err(ApiError::bad("previous_response_id", why));
        let id = &self.id;
        match (self.status.as_str(), &self.talk) {
            (_, Some(talk)) => refused(format!(
                "previous_response_id: {id} is of the conversation {talk}: send \"conversation\""
            )),
            ("completed" | "incomplete", None) => Ok(()),
            (status, None) => refused(format!(
                "previous_response_id: {id} is {status}: nothing can stand behind it"
            )),
        }
    }

    /// What was asked, and what was answered.
    fn all(self) -> Vec<Value> {
        let mut body = parsed(&self.body);
        let mut all = self.input;
        if let Value::Array(output) = body["output"].take() {
            all.extend(output);
        }
        all
    }
}

fn list(text: &str) -> Vec<Value> {
    match parsed(text) {
        Value::Array(items) => items,
        _ => Vec::new(),
    }
}

fn no_response(id: &str) -> ApiError {
    ApiError { code: Some("response_not_found"), ..none_such("response", id) }
}

fn no_previous(id: &str, is_last: bool) -> ApiError {
    let id = shown(id);
    let message = match is_last {
        true => format!("previous_response_id: there is no response {id:?}"),
        false => format!(
            "previous_response_id: the response {id:?}, which stands before it, is deleted or has ended"
        ),
    };
    ApiError {
        code: Some("previous_response_not_found"),
        ..ApiError::bad("previous_response_id", message)
    }
}
