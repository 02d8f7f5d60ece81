//! Models as they were read, kept for who loads them again: headers, program, tokenizer and template,
//! as long as their files stay the same and their vocabularies are small together.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokenmill_files::{ClosedModel, FilesState, OpenModel};
use tokenmill_ir::{Defaults, KvFormat, Program};
use tokenmill_models::ModelSpec;

use crate::load::{LoadFailure, Lowered, read, vocabulary_of};
use crate::packaged::packaged;
use crate::planner::memory::vocabulary_bytes;
use crate::vocabulary::Vocabulary;

/// What was read of a model, and nobody changes while it runs.
pub struct Book {
    /// What it is.
    pub spec: ModelSpec,
    /// What is computed.
    pub program: Program,
    /// Tokenizer and template; `None` for files without.
    pub vocabulary: Option<Vocabulary>,
    /// How the files want the model to be sampled.
    pub defaults: Defaults,
    closed: ClosedModel,
    files: FilesState,
}

impl Book {
    fn of(lowered: &Lowered, vocabulary: Option<Vocabulary>, files: FilesState) -> Self {
        Self {
            spec: lowered.spec.clone(),
            program: lowered.program.clone(),
            vocabulary,
            defaults: packaged(&lowered.files.checkpoint),
            closed: lowered.files.closed(),
            files,
        }
    }

    /// Opens its files.
    ///
    /// # Errors
    /// They are gone, or others.
    pub(super) fn open(&self) -> Result<OpenModel, LoadFailure> {
        Ok(self.closed.open()?)
    }

    fn bytes(&self) -> u64 {
        vocabulary_bytes(self.program.vocab)
    }
}

/// A model whose files are open.
pub(crate) struct Opened {
    pub lowered: Lowered,
    /// What it was found by; `None` where it was read just now.
    pub book: Option<Arc<Book>>,
    /// Its files before they were read.
    files: FilesState,
}

/// Of which model a book is: its path, and the format of keys and values in its program.
type Name = (PathBuf, KvFormat);

/// See the module.
pub(crate) struct Library {
    most_bytes: u64,
    /// The one used last comes last.
    books: Mutex<Vec<(Name, Arc<Book>)>>,
}

impl Library {
    /// One that keeps books of so many bytes together.
    pub fn new(most_bytes: u64) -> Self {
        Self { most_bytes, books: Mutex::default() }
    }

    fn books(&self) -> MutexGuard<'_, Vec<(Name, Arc<Book>)>> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a model, and reads it unless there is a book of it as its files are.
    ///
    /// # Errors
    /// What is wrong with its files.
    pub fn open(&self, path: &Path, kv: KvFormat) -> Result<Opened, LoadFailure> {
        let files = FilesState::of(path)?;
        if let Some(book) = self.find(path, kv, &files)
            && let Ok(open) = book.closed.open()
            && FilesState::of(path).is_ok_and(|now| now == files)
        {
            let (path, spec, program) = (path.to_owned(), book.spec.clone(), book.program.clone());
            let lowered = Lowered { path, files: open, spec, program };
            return Ok(Opened { lowered, book: Some(book), files });
        }
        Ok(Opened { lowered: read(path, kv)?, book: None, files })
    }

    /// The book of a model.
    ///
    /// # Errors
    /// What is wrong with its files.
    pub fn book(&self, path: &Path, kv: KvFormat) -> Result<Arc<Book>, LoadFailure> {
        let opened = self.open(path, kv)?;
        if let Some(book) = opened.book {
            return Ok(book);
        }
        let vocabulary = vocabulary_of(path, &opened.lowered.files)?;
        let book = Arc::new(Book::of(&opened.lowered, vocabulary, opened.files));
        self.keep(path, kv, Arc::clone(&book));
        Ok(book)
    }

    /// Takes what was read of a model that was opened here.
    pub fn note(&self, opened: Opened, kv: KvFormat, vocabulary: Option<&Vocabulary>) -> Lowered {
        let Opened { lowered, book, files } = opened;
        if book.is_none() && self.most_bytes > 0 {
            let book = Book::of(&lowered, vocabulary.cloned(), files);
            self.keep(&lowered.path, kv, Arc::new(book));
        }
        lowered
    }

    fn find(&self, path: &Path, kv: KvFormat, files: &FilesState) -> Option<Arc<Book>> {
        let mut books = self.books();
        let at = books.iter().position(|((of, with), _)| of == path && *with == kv)?;
        let (name, book) = books.remove(at);
        if book.files != *files {
            return None;
        }
        books.push((name, Arc::clone(&book)));
        Some(book)
    }

    fn keep(&self, path: &Path, kv: KvFormat, book: Arc<Book>) {
        // (What was written to while it was read is read again the next time.)
        if !FilesState::of(path).is_ok_and(|now| now == book.files) {
            return;
        }
        let name = (path.to_owned(), kv);
        let mut books = self.books();
        books.retain(|(of, _)| *of != name);
        books.push((name, book));
        let mut sum: u64 = books.iter().map(|(_, book)| book.bytes()).sum();
        while sum > self.most_bytes && !books.is_empty() {
            let (_, oldest) = books.remove(0);
            sum -= oldest.bytes();
        }
    }
}
