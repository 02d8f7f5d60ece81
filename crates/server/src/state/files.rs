//! Files: contents that clients upload, and those that batches write.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

use axum::http::StatusCode;
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use serde_json::{Value, json};

use super::db::{create, disk};
use super::objects::{parsed, signed};
use super::{Owner, Page, Paged, State, none_such};
use crate::error::ApiError;

/// What begins the names of files that are not whole yet.
pub(super) const PARTIAL: &str = "partial-";

/// What a file is to be called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewFile {
    /// The client's name.
    pub name: String,
    /// What for.
    pub purpose: String,
    /// Seconds that it stays; `None`: as everything.
    pub ttl_s: Option<u64>,
    /// Clients see it in their list.
    pub is_listed: bool,
}

impl NewFile {
    /// One that a batch writes.
    pub(super) fn of_batch(name: String, is_listed: bool) -> Self {
        Self { name, purpose: "batch_output".to_owned(), ttl_s: None, is_listed }
    }

    fn kind(&self) -> &'static str {
        if self.is_listed { "file" } else { "lines" }
    }
}

/// A file that is coming; what has come of it goes when this is dropped.
pub struct Upload {
    state: Arc<State>,
    owner: Owner,
    id: String,
    place: PathBuf,
    file: File,
    bytes: u64,
    /// Most that it may have.
    most: u64,
}

impl Upload {
    /// Takes more of it.
    ///
    /// # Errors
    /// 413 for more than one file may have, or all files of one owner; what the disk says.
    pub fn push(&mut self, more: &[u8]) -> Result<(), ApiError> {
        self.bytes += more.len() as u64;
        if self.bytes > self.most {
            return Err(too_large(self.most));
        }
        self.file.write_all(more).map_err(disk)
    }

    /// It has come as a whole: the object that tells it.
    ///
    /// # Errors
    /// What the disk or the database say.
    pub fn end(self, new: &NewFile) -> Result<Value, ApiError> {
        let state = Arc::clone(&self.state);
        self.file.sync_all().map_err(disk)?;
        fs::rename(&self.place, state.content(&self.id)).map_err(disk)?;
        let kept = state.write(|db| state.file(db, self.owner, (&self.id, self.bytes), new));
        if kept.is_err() {
            state.forget(std::slice::from_ref(&self.id));
        }
        kept
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.place); // (it has another name where it is whole)
    }
}

fn too_large(most: u64) -> ApiError {
    let message = format!("the file has more than {most} bytes, which is what it may have here");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
}

impl State {
    /// Where the content of a file lies; its id is one that was given here.
    pub(super) fn content(&self, id: &str) -> PathBuf {
        self.folder.join(id)
    }

    /// A file that is to be written.
    pub(super) fn partial(&self, id: &str) -> Result<(PathBuf, File), ApiError> {
        let place = self.folder.join(format!("{PARTIAL}{id}"));
        let file = create(&place).map_err(disk)?;
        Ok((place, file))
    }

    /// A file begins to come.
    ///
    /// # Errors
    /// 413 where its owner has no room left.
    pub fn upload(self: &Arc<Self>, owner: Owner) -> Result<Upload, ApiError> {
        let held: i64 = self.db().query_row(
            "SELECT coalesce(sum(bytes), 0) FROM files f JOIN objects o ON o.id = f.id
             WHERE o.owner = ?",
            [signed(owner)],
            |row| row.get(0),
        )?;
        let (one, all) = self.most_bytes;
        let left = all.saturating_sub(held.unsigned_abs());
        if left == 0 {
            let message = format!(
                "the files here have {all} bytes together, which is the limit: delete some"
            );
            return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        let id = self.new_id("file-");
        let (place, file) = self.partial(&id)?;
        let state = Arc::clone(self);
        Ok(Upload { state, owner, id, place, file, bytes: 0, most: one.min(left) })
    }

    /// The object of a file whose content lies under its id.
    pub(super) fn file(
        &self,
        db: &Transaction<'_>,
        owner: Owner,
        (id, bytes): (&str, u64),
        new: &NewFile,
    ) -> Result<Value, ApiError> {
        let created = self.now();
        let end = new.ttl_s.map_or(self.end_of_life(), |ttl| created.saturating_add(ttl));
        let told = json!({
            "id": id, "object": "file", "bytes": bytes, "created_at": created,
            "expires_at": end, "filename": new.name, "purpose": new.purpose,
            "status": "processed", "status_details": null,
        });
        self.put(db, (id, new.kind(), owner), ("processed", &told), end)?;
        db.execute("INSERT INTO files (id, bytes) VALUES (?, ?)", params![id, signed(bytes)])?;
        Ok(told)
    }

    /// A file's object.
    ///
    /// # Errors
    /// 404.
    pub fn file_object(&self, owner: Owner, id: &str) -> Result<Value, ApiError> {
        let found = self.find(&self.db(), (id, "file", owner))?;
        found.map(|(_, body)| parsed(&body)).ok_or_else(|| none_such("file", id))
    }

    /// A file's content, and its name.
    ///
    /// # Errors
    /// 404.
    pub fn file_content(&self, owner: Owner, id: &str) -> Result<(File, Value), ApiError> {
        let told = self.file_object(owner, id)?;
        Ok((File::open(self.content(id)).map_err(disk)?, told))
    }

    /// The files of an owner, of a purpose where that is said.
    ///
    /// # Errors
    /// 400 for an id that is none of them.
    pub fn files(
        &self,
        owner: Owner,
        purpose: Option<&str>,
        page: &Page,
    ) -> Result<Paged, ApiError> {
        let db = self.db();
        let filter = purpose.map(|purpose| ("json_extract(body, '$.purpose') = ?5", purpose));
        let (ids, has_more) = self.page(&db, ("file", owner), filter, page)?;
        let mut rows = Vec::with_capacity(ids.len());
        for id in ids {
            if let Some((_, body)) = self.find(&db, (&id, "file", owner))? {
                rows.push((id, parsed(&body)));
            }
        }
        Ok(Paged { rows, has_more })
    }

    /// Deletes a file.
    ///
    /// # Errors
    /// 404; 400 where a batch reads it.
    pub fn delete_file(&self, owner: Owner, id: &str) -> Result<(), ApiError> {
        self.write(|db| {
            self.find(db, (id, "file", owner))?.ok_or_else(|| none_such("file", id))?;
            if let Some(batch) = reader(db, id)? {
                let message = format!("the batch {batch} reads this file: cancel it first");
                return Err(ApiError::bad("file_id", message));
            }
            self.drop_one(db, (id, "file", owner)).map(drop)
        })?;
        self.forget(&[id.to_owned()]);
        Ok(())
    }

    /// Takes away contents that are of no file, when nobody writes any yet: of uploads that broke off,
    /// of files that are gone.
    pub(super) fn sweep(&self) -> Result<(), ApiError> {
        let db = self.db();
        let mut known = db.prepare("SELECT id FROM files")?;
        let known = known.query_map([], |row| row.get(0))?;
        let known = known.collect::<rusqlite::Result<HashSet<String>>>()?;
        for entry in fs::read_dir(&self.folder).map_err(disk)? {
            let entry = entry.map_err(disk)?;
            if !known.contains(entry.file_name().to_string_lossy().as_ref()) {
                fs::remove_file(entry.path()).map_err(disk)?;
            }
        }
        Ok(())
    }

    /// The contents of files whose rows are gone go too.
    pub(super) fn forget(&self, ids: &[String]) {
        for id in ids {
            let _ = fs::remove_file(self.content(id)); // (what is left goes at the next start)
        }
    }
}

/// The batch that reads a file and has not ended.
fn reader(db: &Connection, id: &str) -> Result<Option<String>, ApiError> {
    let found = db
        .query_row(
            "SELECT b.id FROM batches b JOIN objects o ON o.id = b.id WHERE b.input = ?
             AND o.status IN ('validating', 'in_progress', 'cancelling')",
            [id],
            |row| row.get(0),
        )
        .optional()?;
    Ok(found)
}
