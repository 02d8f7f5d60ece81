//! What everything that is kept has: an id, an owner, an end, and an object that tells it.

use std::collections::HashMap;

use axum::extract::Query;
use axum::http::Uri;
use rusqlite::{Connection, OptionalExtension, ToSql, params};
use serde_json::{Value, json};

use super::{Owner, State};
use crate::error::ApiError;
use crate::fields::shown;

/// Which part of a list is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Most of it.
    pub limit: usize,
    /// The oldest first.
    pub is_ascending: bool,
    /// What follows this id in that order.
    pub after: Option<String>,
    /// What comes before this id.
    pub before: Option<String>,
}

impl Page {
    /// That of a request: `limit`, `order`, and by their names of the dialect `after` and `before`.
    ///
    /// # Errors
    /// 400 for what is no such word or number.
    pub fn of(
        uri: &Uri,
        (least, usual, most): (usize, usize, usize),
        (after, before): (&str, &str),
    ) -> Result<Self, ApiError> {
        let mut said = query(uri)?;
        let limit = match said.remove("limit") {
            None => usual,
            Some(text) => {
                let number: Option<usize> = text.parse().ok();
                number.filter(|n| (least..=most).contains(n)).ok_or_else(|| {
                    let message = format!(
                        "limit must be a number from {least} to {most}, not {}",
                        shown(&text)
                    );
                    ApiError::bad("limit", message)
                })?
            }
        };
        let is_ascending = match said.remove("order").as_deref() {
            None | Some("desc") => false,
            Some("asc") => true,
            Some(_) => return Err(ApiError::bad("order", "order must be asc or desc")),
        };
        let after = said.remove(after).filter(|id| !id.is_empty());
        let before = said.remove(before).filter(|id| !id.is_empty());
        Ok(Self { limit, is_ascending, after, before })
    }
}

/// What stands behind the path of a request.
///
/// # Errors
/// 400 where it is none.
pub fn query(uri: &Uri) -> Result<HashMap<String, String>, ApiError> {
    let read = Query::<HashMap<String, String>>::try_from_uri(uri);
    read.map(|Query(said)| said).map_err(|error| ApiError::bad("query", error.body_text()))
}

/// A part of a list.
#[derive(Debug, Default)]
pub struct Paged {
    /// Each with its id.
    pub rows: Vec<(String, Value)>,
    /// Others follow.
    pub has_more: bool,
}

impl Paged {
    /// As OpenAI tells it.
    pub fn told(self) -> Value {
        let id = |row: Option<&(String, Value)>| row.map(|(id, _)| id.clone());
        let (first, last) = (id(self.rows.first()), id(self.rows.last()));
        let data: Vec<Value> = self.rows.into_iter().map(|(_, value)| value).collect();
        json!({
            "object": "list", "data": data, "first_id": first, "last_id": last,
            "has_more": self.has_more,
        })
    }

    /// A part of a list that is here as a whole, the oldest first.
    ///
    /// # Errors
    /// 400 for an id that is not in it.
    pub fn of(mut all: Vec<(String, Value)>, page: &Page) -> Result<Self, ApiError> {
        if !page.is_ascending {
            all.reverse();
        }
        if let Some(after) = &page.after {
            let at = all.iter().position(|(id, _)| id == after);
            all.drain(..=at.ok_or_else(|| not_in_list("after", after))?);
        }
        let has_more = all.len() > page.limit;
        all.truncate(page.limit);
        Ok(Self { rows: all, has_more })
    }
}

pub(super) fn not_in_list(param: &str, id: &str) -> ApiError {
    ApiError::bad(param, format!("{param}: nothing in this list has the id {:?}", shown(id)))
}

/// A JSON text of the database.
pub(super) fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}

/// A number as the database has it.
pub(super) fn signed(number: u64) -> i64 {
    number as i64
}

impl State {
    /// A new object.
    pub(super) fn put(
        &self,
        db: &Connection,
        (id, kind, owner): (&str, &str, Owner),
        (status, body): (&str, &Value),
        expires: u64,
    ) -> Result<(), ApiError> {
        let row = params![id, kind, signed(owner), signed(expires), status, body.to_string()];
        db.execute(
            "INSERT INTO objects (id, kind, owner, expires, status, body) VALUES (?,?,?,?,?,?)",
            row,
        )?;
        Ok(())
    }

    /// The status and the text of an object that is its owner's and has not ended.
    pub(super) fn find(
        &self,
        db: &Connection,
        (id, kind, owner): (&str, &str, Owner),
    ) -> Result<Option<(String, String)>, ApiError> {
        let row = params![id, kind, signed(owner), signed(self.now())];
        let found = db
            .query_row(
                "SELECT status, body FROM objects
                 WHERE id = ? AND kind = ? AND owner = ? AND expires > ?",
                row,
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .optional()?;
        Ok(found)
    }

    /// An object that is used stays for its whole time from now.
    pub(super) fn renew(&self, db: &Connection, id: &str) -> Result<(), ApiError> {
        let row = params![signed(self.end_of_life()), id];
        db.execute("UPDATE objects SET expires = max(expires, ?) WHERE id = ?", row)?;
        Ok(())
    }

    /// The ids of a page, and whether others follow. `filter`: more of the condition, of the words of
    /// this program, with its value.
    pub(super) fn page(
        &self,
        db: &Connection,
        (kind, owner): (&str, Owner),
        filter: Option<(&str, &str)>,
        page: &Page,
    ) -> Result<(Vec<String>, bool), ApiError> {
        let place = |param: &str, id: &Option<String>| -> Result<Option<i64>, ApiError> {
            let Some(id) = id else { return Ok(None) };
            let row = params![id, kind, signed(owner)];
            let sql = "SELECT rowid FROM objects WHERE id = ? AND kind = ? AND owner = ?";
            let found = db.query_row(sql, row, |row| row.get(0)).optional()?;
            found.ok_or_else(|| not_in_list(param, id)).map(Some)
        };
        let (after, before) = (place("after", &page.after)?, place("before", &page.before)?);
        let (more, word) = filter.unwrap_or(("?5 = ?5", ""));
        // (What comes before an id is the nearest part of it, in the list's order.)
        let is_backward = page.before.is_some() && page.after.is_none();
        let ascends = page.is_ascending != is_backward;
        let (from, behind) = if page.is_ascending { (after, before) } else { (before, after) };
        let order = if ascends { "ASC" } else { "DESC" };
        let sql = format!(
            "SELECT id FROM objects WHERE kind = ?1 AND owner = ?2 AND expires > ?3 AND {more}
             AND (?6 IS NULL OR rowid > ?6) AND (?7 IS NULL OR rowid < ?7)
             ORDER BY rowid {order} LIMIT ?4"
        );
        let limit = i64::try_from(page.limit.saturating_add(1)).unwrap_or(i64::MAX);
        let (owner, now) = (signed(owner), signed(self.now()));
        let row: [&dyn ToSql; 7] = [&kind, &owner, &now, &limit, &word, &from, &behind];
        let mut found = db.prepare(&sql)?;
        let found = found.query_map(&row[..], |row| row.get(0))?;
        let mut ids = found.collect::<rusqlite::Result<Vec<String>>>()?;
        let has_more = ids.len() > page.limit;
        ids.truncate(page.limit);
        if is_backward {
            ids.reverse();
        }
        Ok((ids, has_more))
    }

    /// Takes an object away; whether it was there.
    pub(super) fn drop_one(
        &self,
        db: &Connection,
        (id, kind, owner): (&str, &str, Owner),
    ) -> Result<bool, ApiError> {
        let row = params![id, kind, signed(owner)];
        Ok(db.execute("DELETE FROM objects WHERE id = ? AND kind = ? AND owner = ?", row)? > 0)
    }

    /// Takes away what has ended, but for what is in use: answers that are being made, batches that
    /// have not ended and the files that these read.
    ///
    /// # Errors
    /// What the database or the disk say.
    pub fn expire(&self) -> Result<(), ApiError> {
        let gone = self.write(|db| {
            let mut ended = db.prepare(
                "DELETE FROM objects WHERE expires <= ?
                 AND NOT (kind = 'response' AND status = 'in_progress')
                 AND NOT (kind IN ('batch', 'message_batch')
                          AND status IN ('validating', 'in_progress', 'cancelling'))
                 AND id NOT IN (SELECT b.input FROM batches b JOIN objects o ON o.id = b.id
                                WHERE o.status IN ('validating', 'in_progress', 'cancelling'))
                 RETURNING id, kind",
            )?;
            let rows =
                ended.query_map([signed(self.now())], |row| Ok((row.get(0)?, row.get(1)?)))?;
            Ok(rows.collect::<rusqlite::Result<Vec<(String, String)>>>()?)
        })?;
        let files = gone.into_iter().filter(|(_, kind)| kind == "file" || kind == "lines");
        self.forget(&files.map(|(id, _)| id).collect::<Vec<_>>());
        Ok(())
    }
}
