//! The door through which model files come in. What reads them refuses what it cannot take by name;
//! where it panics all the same, that is a bug here, and an error that names the file, as any other:
//! whoever is served meanwhile goes on being served.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// A panic while a model was read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{what}: a bug in tokenmill; the file is {}", file.display())]
pub struct Bug {
    /// What it said, and where.
    pub what: String,
    /// The model that was read.
    pub file: PathBuf,
}

/// Most characters of what a panic said.
const TOLD: usize = 240;

thread_local! {
    /// How many doors this thread is behind: panics there are told as errors.
    static BEHIND: Cell<u32> = const { Cell::new(0) };
    /// What the last panic behind a door said, and where.
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Reads what belongs to the model at `file`.
///
/// # Errors
/// Those of `work`, and [`Bug`] where it panics.
pub fn through<T, E: From<Bug>>(file: &Path, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    BEHIND.set(BEHIND.get() + 1);
    // What the work has half done goes with it: nothing of it is looked at after a panic.
    let done = catch_unwind(AssertUnwindSafe(work));
    BEHIND.set(BEHIND.get().saturating_sub(1));
    done.unwrap_or_else(|panic| {
        let said = SAID.take();
        let what = if said.is_empty() { crate::engine::panic_text(&*panic) } else { said };
        Err(Bug { what: line(&what), file: file.to_owned() }.into())
    })
}

/// Keeps panics behind doors from the standard error: they are told as errors. For the beginning of
/// a program.
pub fn keep_quiet() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| match BEHIND.get() {
        0 => usual(panic),
        _ => SAID.set(told(panic)),
    }));
}

fn told(panic: &PanicHookInfo<'_>) -> String {
    let text = crate::engine::panic_text(panic.payload());
    match panic.location() {
        Some(at) => format!("{text} ({}:{})", at.file(), at.line()),
        None => text,
    }
}

/// One line of bounded length.
fn line(text: &str) -> String {
    let flat = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(flat).take(TOLD).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_become_errors_that_name_the_file() {
        let path = Path::new("some/model.gguf");
        assert_eq!(through::<_, Bug>(path, || Ok(3)), Ok(3));
        let nested = || through::<(), Bug>(path, || panic!("row 7\nof {}", "x".repeat(9000)));
        let told = through::<(), Bug>(path, nested).unwrap_err();
        let text = told.to_string();
        assert!(text.starts_with("row 7 of xxx"), "{text}");
        assert!(text.ends_with(": a bug in tokenmill; the file is some/model.gguf"), "{text}");
        assert!(text.len() < 400 && !text.contains('\n'), "{text}");
        assert_eq!(BEHIND.get(), 0);
    }
}
