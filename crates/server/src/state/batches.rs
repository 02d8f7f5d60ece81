//! Batches: requests of a file that are answered one by one, whatever happens to the process in
//! between. A line's answer is one transaction, and so is the end of a batch.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use rusqlite::{Connection, Row, params};
use serde_json::{Value, json};

use super::db::disk;
use super::files::{NewFile, PARTIAL};
use super::lines::{Checked, End, NewLine, line_of, results};
use super::objects::{parsed, signed};
use super::{Owner, Page, State, none_such};
use crate::config::Limits;
use crate::error::ApiError;

/// Whose form a batch has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Lines of a file that was uploaded.
    OpenAi,
    /// Requests that came together.
    Anthropic,
}

impl Dialect {
    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::OpenAi => "batch",
            Self::Anthropic => "message_batch",
        }
    }
}

/// A batch as it is.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Its id.
    pub id: String,
    /// `validating`, `in_progress`, `cancelling`, `failed`, `completed`, `cancelled`, `expired`.
    pub status: String,
    /// What its dialect tells of it, beside what is here.
    pub body: Value,
    /// Lines.
    pub total: u64,
    /// Lines that were answered.
    pub completed: u64,
    /// Lines that were refused or failed.
    pub failed: u64,
}

impl Batch {
    /// Whether nothing more comes of it.
    pub fn has_ended(&self) -> bool {
        !["validating", "in_progress", "cancelling"].contains(&self.status.as_str())
    }
}

/// A batch that is to be.
#[derive(Debug, Clone)]
pub struct NewBatch {
    /// What its dialect tells of it.
    pub body: Value,
    /// Where its requests would have been sent.
    pub endpoint: String,
    /// Seconds that it may take.
    pub within_s: u64,
}

/// A batch that has not ended, as its worker sees it.
#[derive(Debug, Clone)]
pub(super) struct Open {
    pub id: String,
    pub dialect: Dialect,
    pub owner: Owner,
    pub status: String,
    pub endpoint: String,
    pub input: String,
    pub until: u64,
    pub total: u64,
    pub answered: u64,
}

/// A line that is not answered yet.
#[derive(Debug, Clone)]
pub(super) struct Pending {
    pub number: u64,
    /// Where in the file.
    pub at: u64,
    pub bytes: u64,
}

const ALL: &str = "SELECT o.id, o.status, o.body, b.total, b.completed, b.failed
    FROM objects o JOIN batches b ON b.id = o.id
    WHERE o.id = ?1 AND o.kind = ?2 AND o.owner = ?3 AND o.expires > ?4";

fn count(row: &Row<'_>, at: usize) -> rusqlite::Result<u64> {
    Ok(row.get::<_, i64>(at)?.unsigned_abs())
}

impl State {
    /// A batch of a file's lines, which are checked before they are asked.
    ///
    /// # Errors
    /// 400 where there is no such file.
    pub fn new_batch(&self, owner: Owner, input: &str, new: NewBatch) -> Result<Batch, ApiError> {
        let id = self.new_id("batch_");
        let file = self
            .file_object(owner, input)
            .map_err(|error| ApiError { status: axum::http::StatusCode::BAD_REQUEST, ..error });
        let file =
            file.map_err(|error| ApiError { param: Some("input_file_id".into()), ..error })?;
        if file["purpose"] != "batch" {
            let message = "input_file_id: the file was uploaded for another purpose than batch";
            return Err(ApiError::bad("input_file_id", message));
        }
        self.write(|db| self.begin(db, (&id, Dialect::OpenAi, owner), "validating", input, &new))?;
        self.wake.notify_one();
        self.batch(owner, Dialect::OpenAi, &id)
    }

    /// A batch of requests that came together, each with its name; they were checked.
    ///
    /// # Errors
    /// What the disk or the database say.
    pub fn new_message_batch(
        self: &Arc<Self>,
        owner: Owner,
        requests: &[(String, Value)],
        new: NewBatch,
    ) -> Result<Batch, ApiError> {
        let mut upload = self.upload(owner)?;
        let (mut lines, mut at) = (Vec::with_capacity(requests.len()), 0);
        for (number, (custom_id, body)) in (1..).zip(requests) {
            let line = json!({ "custom_id": custom_id, "url": new.endpoint, "body": body });
            let line = format!("{line}\n");
            upload.push(line.as_bytes())?;
            let (custom_id, bytes) = (custom_id.clone(), line.len() as u64);
            lines.push(NewLine { number, custom_id, at, bytes });
            at += bytes;
        }
        let file = NewFile::of_batch("requests.jsonl".to_owned(), false);
        let input = upload.end(&file)?;
        let input = input["id"].as_str().unwrap_or_default();
        let id = self.new_id("msgbatch_");
        self.write(|db| {
            self.begin(db, (&id, Dialect::Anthropic, owner), "in_progress", input, &new)?;
            put_lines(db, &id, &lines)
        })?;
        self.wake.notify_one();
        self.batch(owner, Dialect::Anthropic, &id)
    }

    fn begin(
        &self,
        db: &Connection,
        (id, dialect, owner): (&str, Dialect, Owner),
        status: &str,
        input: &str,
        new: &NewBatch,
    ) -> Result<(), ApiError> {
        let until = self.now().saturating_add(new.within_s);
        let mut body = new.body.clone();
        (body["id"], body["created_at"]) = (id.into(), self.now().into());
        body["expires_at"] = until.into();
        self.put(db, (id, dialect.kind(), owner), (status, &body), self.end_of_life())?;
        db.execute(
            "INSERT INTO batches (id, endpoint, input, until, total, completed, failed)
             VALUES (?, ?, ?, ?, 0, 0, 0)",
            params![id, new.endpoint, input, signed(until)],
        )?;
        Ok(())
    }

    /// A batch as it is.
    ///
    /// # Errors
    /// 404.
    pub fn batch(&self, owner: Owner, dialect: Dialect, id: &str) -> Result<Batch, ApiError> {
        self.batch_in(&self.db(), (owner, dialect), id)
    }

    fn batch_in(
        &self,
        db: &Connection,
        (owner, dialect): (Owner, Dialect),
        id: &str,
    ) -> Result<Batch, ApiError> {
        let key = params![id, dialect.kind(), signed(owner), signed(self.now())];
        let found = db.query_row(ALL, key, |row| {
            let (id, status, body): (_, _, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let (total, completed, failed) = (count(row, 3)?, count(row, 4)?, count(row, 5)?);
            Ok(Batch { id, status, body: parsed(&body), total, completed, failed })
        });
        match found {
            Err(rusqlite::Error::QueryReturnedNoRows) => Err(none_such("batch", id)),
            found => Ok(found?),
        }
    }

    /// A part of an owner's batches, and whether others follow.
    ///
    /// # Errors
    /// 400 for an id that is none of them.
    pub fn batches(
        &self,
        owner: Owner,
        dialect: Dialect,
        page: &Page,
    ) -> Result<(Vec<Batch>, bool), ApiError> {
        let db = self.db();
        let (ids, has_more) = self.page(&db, (dialect.kind(), owner), None, page)?;
        let all = ids.iter().map(|id| self.batch_in(&db, (owner, dialect), id));
        Ok((all.collect::<Result<_, _>>()?, has_more))
    }

    /// A batch is to end without the lines that are not answered; one that has ended stays as it is.
    ///
    /// # Errors
    /// 404.
    pub fn cancel_batch(
        &self,
        owner: Owner,
        dialect: Dialect,
        id: &str,
    ) -> Result<Batch, ApiError> {
        self.write(|db| {
            let batch = self.batch_in(db, (owner, dialect), id)?;
            if batch.has_ended() || batch.status == "cancelling" {
                return Ok(());
            }
            self.becomes(db, id, "cancelling", &["cancelling_at"], &Value::Null)
        })?;
        self.wake.notify_one();
        self.batch(owner, dialect, id)
    }

    /// Deletes a batch that has ended, and what came of it.
    ///
    /// # Errors
    /// 404; 400 for one that has not ended.
    pub fn delete_message_batch(&self, owner: Owner, id: &str) -> Result<(), ApiError> {
        let files = self.write(|db| {
            let batch = self.batch_in(db, (owner, Dialect::Anthropic), id)?;
            if !batch.has_ended() {
                let message = "the batch has not ended: cancel it first";
                return Err(ApiError::bad("message_batch_id", message));
            }
            let sql = "SELECT input FROM batches WHERE id = ?";
            let input: String = db.query_row(sql, [id], |row| row.get(0))?;
            let results = batch.body["results"].as_str().unwrap_or_default().to_owned();
            for (id, kind) in
                [(id, "message_batch"), (input.as_str(), "lines"), (results.as_str(), "lines")]
            {
                self.drop_one(db, (id, kind, owner))?;
            }
            Ok(vec![input, results])
        })?;
        let files: Vec<String> = files.into_iter().filter(|id| !id.is_empty()).collect();
        self.forget(&files);
        Ok(())
    }

    /// What came of a batch of messages, a line each.
    ///
    /// # Errors
    /// 404; 400 for one that has not ended.
    pub fn batch_results(&self, owner: Owner, id: &str) -> Result<File, ApiError> {
        let batch = self.batch(owner, Dialect::Anthropic, id)?;
        match batch.body["results"].as_str() {
            Some(results) => File::open(self.content(results)).map_err(disk),
            None => {
                let message = "the batch has not ended: its results come with its end";
                Err(ApiError::bad("message_batch_id", message))
            }
        }
    }

    /// A batch's status becomes another, at a time that its object names so; `more` stands in it too.
    fn becomes(
        &self,
        db: &Connection,
        id: &str,
        status: &str,
        times: &[&str],
        more: &Value,
    ) -> Result<(), ApiError> {
        let sql = "SELECT body FROM objects WHERE id = ?";
        let body: String = db.query_row(sql, [id], |row| row.get(0))?;
        let mut body = parsed(&body);
        for time in times {
            body[time] = self.now().into();
        }
        for (name, value) in more.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        let row = params![status, body.to_string(), signed(self.end_of_life()), id];
        db.execute("UPDATE objects SET status = ?, body = ?, expires = ? WHERE id = ?", row)?;
        Ok(())
    }

    /// The batches that have not ended, the oldest first.
    pub(super) fn open_batches(&self) -> Result<Vec<Open>, ApiError> {
        let db = self.db();
        let mut found = db.prepare(
            "SELECT o.id, o.kind, o.owner, o.status, b.endpoint, b.input, b.until, b.total,
               b.completed + b.failed
             FROM batches b JOIN objects o ON o.id = b.id
             WHERE o.status IN ('validating', 'in_progress', 'cancelling') ORDER BY o.rowid",
        )?;
        let found = found.query_map([], |row| {
            let is_openai = row.get::<_, String>(1)? == Dialect::OpenAi.kind();
            Ok(Open {
                id: row.get(0)?,
                dialect: if is_openai { Dialect::OpenAi } else { Dialect::Anthropic },
                owner: row.get::<_, i64>(2)? as u64,
                status: row.get(3)?,
                endpoint: row.get(4)?,
                input: row.get(5)?,
                until: count(row, 6)?,
                total: count(row, 7)?,
                answered: count(row, 8)?,
            })
        })?;
        Ok(found.collect::<rusqlite::Result<_>>()?)
    }

    /// Checks the lines of a batch: it goes on with them, or fails and says which are wrong.
    pub(super) fn validate(&self, open: &Open, limits: &Limits) -> Result<(), ApiError> {
        let file = File::open(self.content(&open.input)).map_err(disk)?;
        let Checked { lines, errors } =
            super::lines::check(file, &open.endpoint, limits).map_err(disk)?;
        self.write(|db| {
            let sql = "SELECT status FROM objects WHERE id = ?";
            let status: String = db.query_row(sql, [&open.id], |row| row.get(0))?;
            if status != "validating" {
                return Ok(()); // it was cancelled meanwhile
            }
            if !errors.is_empty() {
                let told = json!({ "errors": { "object": "list", "data": errors } });
                return self.becomes(db, &open.id, "failed", &["failed_at"], &told);
            }
            put_lines(db, &open.id, &lines)?;
            self.becomes(db, &open.id, "in_progress", &["in_progress_at"], &Value::Null)
        })
    }

    /// Lines behind a number that are not answered.
    pub(super) fn pending(
        &self,
        id: &str,
        behind: u64,
        most: usize,
    ) -> Result<Vec<Pending>, ApiError> {
        let db = self.db();
        let mut found = db.prepare(
            "SELECT number, at, bytes FROM lines
             WHERE batch = ? AND number > ? AND status IS NULL ORDER BY number LIMIT ?",
        )?;
        let row = params![id, signed(behind), signed(most as u64)];
        let found = found.query_map(row, |row| {
            Ok(Pending { number: count(row, 0)?, at: count(row, 1)?, bytes: count(row, 2)? })
        })?;
        Ok(found.collect::<rusqlite::Result<_>>()?)
    }

    /// The request of a line.
    pub(super) fn request(&self, open: &Open, line: &Pending) -> Result<Vec<u8>, ApiError> {
        let file = File::open(self.content(&open.input)).map_err(disk)?;
        line_of(file, line).map_err(disk)
    }

    /// A line was answered; it is once.
    pub(super) fn answered(
        &self,
        id: &str,
        number: u64,
        (status, answer): (u16, &str),
    ) -> Result<(), ApiError> {
        let counter = if status < 300 { "completed" } else { "failed" };
        self.write(|db| {
            let mut put = db.prepare(
                "UPDATE lines SET status = ?, answer = ?
                 WHERE batch = ? AND number = ? AND status IS NULL",
            )?;
            if put.execute(params![status, answer, id, signed(number)])? > 0 {
                let sql = format!("UPDATE batches SET {counter} = {counter} + 1 WHERE id = ?");
                db.execute(&sql, [id])?;
            }
            Ok(())
        })
    }

    /// A batch ends: its files are written, then it says so.
    pub(super) fn finish(&self, open: &Open, end: End) -> Result<(), ApiError> {
        let is_openai = open.dialect == Dialect::OpenAi;
        let mut output = Output::new(self, "output")?;
        let mut errors = Output::new(self, "errors")?;
        let ids = [output.id.clone(), errors.id.clone()];
        // (Nothing is answered between the files and what is said of them.)
        let done = self.write(|db| {
            results(db, open, end, (&mut output, &mut errors))?;
            let put = |made: Output| match made.end(self)? {
                None => Ok(Value::Null),
                Some(made) => {
                    let name = format!("{}_{}.jsonl", open.id, made.name);
                    let file = NewFile::of_batch(name, is_openai);
                    let told = self.file(db, open.owner, (&made.id, made.bytes), &file);
                    told.map(|file| file["id"].clone())
                }
            };
            let (output, errors) = (put(output)?, put(errors)?);
            let told = match open.dialect {
                Dialect::OpenAi => json!({ "output_file_id": output, "error_file_id": errors }),
                Dialect::Anthropic => json!({ "results": output }),
            };
            let times = ["finalizing_at", end.time()];
            self.becomes(db, &open.id, end.status(), &times, &told)?;
            if is_openai {
                // (Who gets no answer stands in the file of errors: the counts add up.)
                let sql = "UPDATE batches SET failed = total - completed WHERE id = ?";
                db.execute(sql, [&open.id])?;
            }
            db.execute("DELETE FROM lines WHERE batch = ?", [&open.id])?;
            Ok(())
        });
        if done.is_err() {
            self.forget(&ids);
            self.forget(&ids.map(|id| format!("{PARTIAL}{id}")));
        }
        done
    }
}

fn put_lines(db: &Connection, id: &str, lines: &[NewLine]) -> Result<(), ApiError> {
    let mut put = db.prepare(
        "INSERT INTO lines (batch, number, custom_id, at, bytes) VALUES (?, ?, ?, ?, ?)",
    )?;
    for line in lines {
        let (number, at, bytes) = (signed(line.number), signed(line.at), signed(line.bytes));
        put.execute(params![id, number, line.custom_id, at, bytes])?;
    }
    let total = signed(lines.len() as u64);
    db.execute("UPDATE batches SET total = ? WHERE id = ?", params![total, id])?;
    Ok(())
}

/// A file that a batch writes.
pub(super) struct Output {
    name: &'static str,
    id: String,
    place: PathBuf,
    file: std::io::BufWriter<File>,
    bytes: u64,
}

/// One that is written.
struct Made {
    name: &'static str,
    id: String,
    bytes: u64,
}

impl Output {
    fn new(state: &State, name: &'static str) -> Result<Self, ApiError> {
        let id = state.new_id("file-");
        let (place, file) = state.partial(&id)?;
        Ok(Self { name, id, place, file: std::io::BufWriter::new(file), bytes: 0 })
    }

    /// One more line, without its end.
    pub(super) fn line(&mut self, line: &str) -> Result<(), ApiError> {
        self.bytes += line.len() as u64 + 1;
        writeln!(self.file, "{line}").map_err(disk)
    }

    /// All of it; none where it has no line.
    fn end(self, state: &State) -> Result<Option<Made>, ApiError> {
        let file = self.file.into_inner().map_err(|error| disk(error.into_error()))?;
        if self.bytes == 0 {
            fs::remove_file(&self.place).map_err(disk)?;
            return Ok(None);
        }
        file.sync_all().map_err(disk)?;
        fs::rename(&self.place, state.content(&self.id)).map_err(disk)?;
        Ok(Some(Made { name: self.name, id: self.id, bytes: self.bytes }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{NewFile, StateConfig};
    use super::*;

    #[test]
    fn a_batch_that_is_cancelled_while_it_is_checked_stays_so() {
        let folder = tempfile::tempdir().expect("a folder");
        let limits = Limits::default();
        let state = State::open(&StateConfig::new(folder.path()), &limits).expect("open");
        let line = r#"{"custom_id":"a","method":"POST","url":"/v1/completions","body":{}}"#;
        let mut upload = state.upload(1).expect("room");
        upload.push(format!("{line}\n").as_bytes()).expect("room");
        let (name, purpose) = ("in.jsonl".into(), "batch".into());
        let file = NewFile { name, purpose, ttl_s: None, is_listed: true };
        let file = upload.end(&file).expect("kept");
        let new = NewBatch { body: json!({}), endpoint: "/v1/completions".into(), within_s: 9 };
        let id = file["id"].as_str().expect("an id");
        let batch = state.new_batch(1, id, new).expect("made");
        let open = state.open_batches().expect("read").remove(0);
        state.cancel_batch(1, Dialect::OpenAi, &batch.id).expect("cancelled");
        state.validate(&open, &limits).expect("checked");
        let found = state.batch(1, Dialect::OpenAi, &batch.id).expect("there");
        assert_eq!(found.status, "cancelling");
    }
}
