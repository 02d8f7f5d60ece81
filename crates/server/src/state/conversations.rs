//! Conversations: items in order, to which answers add what was asked and what was said.

use rusqlite::{Connection, OptionalExtension, Transaction, params};
use serde_json::{Value, json};

use super::objects::{not_in_list, parsed, signed};
use super::{Owner, Page, Paged, State, none_such};
use crate::error::ApiError;

const KIND: &str = "conversation";

/// Items as they are kept: what asks for a summary is none, a text is a message, and each has an id.
pub fn with_ids(given: Value, state: &State) -> Vec<Value> {
    let items = match given {
        Value::Array(items) => items,
        Value::String(text) => vec![json!({ "role": "user", "content": text })],
        _ => Vec::new(), // (refused where it is read)
    };
    let is_kept = |item: &Value| item["type"] != "compaction_trigger";
    items.into_iter().filter(is_kept).map(|item| Given(item).kept(state)).collect()
}

/// An item as a client gives it.
struct Given(Value);

impl Given {
    /// The same with an id, and a message in the form that answers have too.
    fn kept(self, state: &State) -> Value {
        let Value::Object(mut item) = self.0 else { return self.0 };
        let kind = item.get("type").and_then(Value::as_str);
        let kind =
            kind.unwrap_or(if item.contains_key("role") { "message" } else { "" }).to_owned();
        if item.get("id").and_then(Value::as_str).is_none_or(str::is_empty) {
            item.insert("id".into(), state.new_id(prefix(&kind)).into());
        }
        if kind == "message" {
            item.insert("type".into(), kind.into());
            item.entry("status").or_insert_with(|| "completed".into());
            let is_said = item.get("role").is_some_and(|role| role == "assistant");
            if let Some(Value::String(text)) = item.get("content") {
                let part = match is_said {
                    true => json!([{ "type": "output_text", "text": text, "annotations": [] }]),
                    false => json!([{ "type": "input_text", "text": text }]),
                };
                item.insert("content".into(), part);
            }
        }
        Value::Object(item)
    }
}

/// What the ids of an item begin with.
fn prefix(kind: &str) -> &'static str {
    match kind {
        "message" => "msg_",
        "reasoning" => "rs_",
        "function_call" => "fc_",
        "function_call_output" => "fco_",
        "custom_tool_call" => "ctc_",
        "custom_tool_call_output" => "ctco_",
        "tool_search_call" => "tsc_",
        "compaction" => "cmp_",
        _ => "item_",
    }
}

impl State {
    /// A new conversation.
    ///
    /// # Errors
    /// What the database says.
    pub fn new_conversation(
        &self,
        owner: Owner,
        metadata: &Value,
        items: &[Value],
    ) -> Result<Value, ApiError> {
        let id = self.new_id("conv_");
        let told = json!({
            "id": id, "object": "conversation", "created_at": self.now(), "metadata": metadata,
        });
        self.write(|db| {
            self.put(db, (&id, KIND, owner), ("open", &told), self.end_of_life())?;
            self.append(db, (owner, &id), items).map(drop)
        })?;
        Ok(told)
    }

    /// A conversation's object.
    ///
    /// # Errors
    /// 404.
    pub fn conversation(&self, owner: Owner, id: &str) -> Result<Value, ApiError> {
        self.talk(&self.db(), owner, id)
    }

    fn talk(&self, db: &Connection, owner: Owner, id: &str) -> Result<Value, ApiError> {
        let found = self.find(db, (id, KIND, owner))?;
        found.map(|(_, body)| parsed(&body)).ok_or_else(|| none_such(KIND, id))
    }

    /// Other metadata.
    ///
    /// # Errors
    /// 404.
    pub fn update_conversation(
        &self,
        owner: Owner,
        id: &str,
        metadata: &Value,
    ) -> Result<Value, ApiError> {
        self.write(|db| {
            let mut told = self.talk(db, owner, id)?;
            told["metadata"] = metadata.clone();
            let row = params![told.to_string(), id];
            db.execute("UPDATE objects SET body = ? WHERE id = ?", row)?;
            self.renew(db, id)?;
            Ok(told)
        })
    }

    /// Deletes a conversation with its items; answers that were given in it stay.
    ///
    /// # Errors
    /// 404.
    pub fn delete_conversation(&self, owner: Owner, id: &str) -> Result<(), ApiError> {
        match self.write(|db| self.drop_one(db, (id, KIND, owner)))? {
            true => Ok(()),
            false => Err(none_such(KIND, id)),
        }
    }

    /// Adds items; as they are kept. Where the conversation is gone, nothing.
    pub(super) fn append(
        &self,
        db: &Transaction<'_>,
        (owner, talk): (Owner, &str),
        items: &[Value],
    ) -> Result<Vec<Value>, ApiError> {
        if self.find(db, (talk, KIND, owner))?.is_none() {
            return Ok(Vec::new());
        }
        let last = "SELECT coalesce(max(number), 0) FROM items WHERE conversation = ?";
        let mut number: i64 = db.query_row(last, [talk], |row| row.get(0))?;
        let mut put =
            db.prepare("INSERT INTO items (conversation, number, id, body) VALUES (?, ?, ?, ?)")?;
        let mut kept = Vec::with_capacity(items.len());
        for item in items {
            let mut item = item.clone();
            let id = item["id"].as_str().unwrap_or_default().to_owned();
            let sql = "SELECT 1 FROM items WHERE conversation = ? AND id = ?";
            let is_there = db.query_row(sql, [talk, &id], |_| Ok(())).optional()?.is_some();
            if is_there {
                // (A client that says again what was said: it stands there twice.)
                let kind = item["type"].as_str().unwrap_or_default().to_owned();
                item["id"] = self.new_id(prefix(&kind)).into();
            }
            number += 1;
            let id = item["id"].as_str().unwrap_or_default();
            put.execute(params![talk, number, id, item.to_string()])?;
            kept.push(item);
        }
        self.renew(db, talk)?;
        Ok(kept)
    }

    /// Adds items to a conversation; as they are kept.
    ///
    /// # Errors
    /// 404.
    pub fn add_items(
        &self,
        owner: Owner,
        talk: &str,
        items: &[Value],
    ) -> Result<Vec<Value>, ApiError> {
        self.write(|db| {
            self.talk(db, owner, talk)?;
            self.append(db, (owner, talk), items)
        })
    }

    /// All items of a conversation in order, from the last summary on.
    ///
    /// # Errors
    /// 404, and 400 for more than `most` bytes.
    pub fn said_in(&self, owner: Owner, talk: &str, most: usize) -> Result<Vec<Value>, ApiError> {
        let db = self.db();
        self.talk(&db, owner, talk)?;
        let mut found =
            db.prepare("SELECT body FROM items WHERE conversation = ? ORDER BY number")?;
        let mut rows = found.query([talk])?;
        let (mut all, mut bytes) = (Vec::new(), 0usize);
        while let Some(row) = rows.next()? {
            let body: String = row.get(0)?;
            bytes = bytes.saturating_add(body.len());
            if bytes > most {
                let message = format!("the conversation has more than {most} bytes");
                return Err(ApiError::too_long("conversation", message));
            }
            all.push(parsed(&body));
        }
        let summary = all.iter().rposition(|item: &Value| item["type"] == "compaction");
        all.drain(..summary.unwrap_or(0));
        Ok(all)
    }

    /// A part of a conversation's items.
    ///
    /// # Errors
    /// 404, and 400 for an id that is not in it.
    pub fn list_items(&self, owner: Owner, talk: &str, page: &Page) -> Result<Paged, ApiError> {
        let db = self.db();
        self.talk(&db, owner, talk)?;
        let behind: Option<i64> = match &page.after {
            None => None,
            Some(id) => {
                let sql = "SELECT number FROM items WHERE conversation = ? AND id = ?";
                let number = db.query_row(sql, [talk, id], |row| row.get(0)).optional()?;
                Some(number.ok_or_else(|| not_in_list("after", id))?)
            }
        };
        let (side, order) = if page.is_ascending { (">", "ASC") } else { ("<", "DESC") };
        let sql = format!(
            "SELECT id, body FROM items WHERE conversation = ?1 AND (?2 IS NULL OR number {side} ?2)
             ORDER BY number {order} LIMIT ?3"
        );
        let mut found = db.prepare(&sql)?;
        let row = params![talk, behind, signed(page.limit as u64 + 1)];
        let found = found.query_map(row, |row| Ok((row.get(0)?, row.get::<_, String>(1)?)))?;
        let found = found.collect::<rusqlite::Result<Vec<(String, String)>>>()?;
        let has_more = found.len() > page.limit;
        let rows = found.into_iter().take(page.limit).map(|(id, body)| (id, parsed(&body)));
        Ok(Paged { rows: rows.collect(), has_more })
    }

    /// One item.
    ///
    /// # Errors
    /// 404.
    pub fn item(&self, owner: Owner, talk: &str, id: &str) -> Result<Value, ApiError> {
        let db = self.db();
        self.talk(&db, owner, talk)?;
        let sql = "SELECT body FROM items WHERE conversation = ? AND id = ?";
        let found: Option<String> = db.query_row(sql, [talk, id], |row| row.get(0)).optional()?;
        found.map(|body| parsed(&body)).ok_or_else(|| none_such("item", id))
    }

    /// Deletes an item; the conversation's object.
    ///
    /// # Errors
    /// 404.
    pub fn delete_item(&self, owner: Owner, talk: &str, id: &str) -> Result<Value, ApiError> {
        self.write(|db| {
            let told = self.talk(db, owner, talk)?;
            let sql = "DELETE FROM items WHERE conversation = ? AND id = ?";
            match db.execute(sql, [talk, id])? {
                0 => Err(none_such("item", id)),
                _ => Ok(told),
            }
        })
    }
}
