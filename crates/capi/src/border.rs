//! What crosses the border: texts, errors, and no panic.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use tokenmill::serde_json::{self, Value};

/// The surface's version: raised when a function changes or goes; new ones do not raise it.
pub const TOKENMILL_ABI: u32 = 1;

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// The version of this library's surface: a program that was compiled with another `TOKENMILL_ABI` must not call it.
#[unsafe(no_mangle)]
pub extern "C" fn tokenmill_abi_version() -> u32 {
    TOKENMILL_ABI
}

/// What the last call of this thread that failed says. Valid until the next call of this thread that fails.
#[unsafe(no_mangle)]
pub extern "C" fn tokenmill_last_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

/// A text without zero bytes, which would end it.
pub(crate) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

/// Runs what a function does; a failure or a panic is told by `tokenmill_last_error`, and `otherwise` returned.
pub(crate) fn across<T>(otherwise: T, work: impl FnOnce() -> Result<T, String>) -> T {
    // (What a panic leaves half done is behind a lock, which it poisons.)
    let error = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => return done,
        Ok(Err(error)) => error,
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            format!("a bug in tokenmill: {}", text.unwrap_or_default())
        }
    };
    LAST.set(c_text(&error));
    otherwise
}

/// An error as it is told.
pub(crate) fn told(error: tokenmill::Error) -> String {
    error.to_string()
}

/// A text of the caller's.
///
/// # Safety
/// `text` is null, or ends with a zero byte and lives as long as the result.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str, String> {
    if text.is_null() {
        return Err(format!("{name} is NULL"));
    }
    // SAFETY: it is not null; the caller promises the rest.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|error| format!("{name} is not UTF-8: {error}"))
}

/// A text of JSON; none where it is null.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn json(given: *const c_char, name: &str) -> Result<Option<Value>, String> {
    if given.is_null() {
        return Ok(None);
    }
    // SAFETY: by the caller's promise.
    let given = unsafe { text(given, name) }?;
    serde_json::from_str(given).map(Some).map_err(|error| format!("{name} is no JSON: {error}"))
}

/// The thing behind a handle.
///
/// # Safety
/// `handle` is null, or was made by this library, not freed, and lives as long as the result.
pub(crate) unsafe fn known<'a, T>(handle: *const T, name: &str) -> Result<&'a T, String> {
    // SAFETY: by the caller's promise.
    unsafe { handle.as_ref() }.ok_or_else(|| format!("{name} is NULL"))
}

/// Frees a handle; NULL is none.
///
/// # Safety
/// `handle` is null, or was made by `Box::into_raw` and not freed.
pub(crate) unsafe fn free<T>(handle: *mut T) {
    across((), || {
        if !handle.is_null() {
            // SAFETY: by the caller's promise.
            drop(unsafe { Box::from_raw(handle) });
        }
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_do_not_cross() {
        let told = || {
            // SAFETY: it is a text that ends with a zero byte, in any case.
            unsafe { CStr::from_ptr(tokenmill_last_error()) }.to_str().unwrap().to_owned()
        };
        assert_eq!(across(7, || Err::<i32, _>("no\0thing".to_owned())), 7);
        assert_eq!(told(), "no\u{fffd}thing");
        assert_eq!(across(-1, || panic!("a hole of {} bytes", 3)), -1);
        assert_eq!(told(), "a bug in tokenmill: a hole of 3 bytes");
        assert_eq!(across(-1, || Ok(1)), 1);
        let elsewhere = std::thread::spawn(|| tokenmill_last_error() as usize).join().unwrap();
        assert_ne!(elsewhere, tokenmill_last_error() as usize, "each thread has its own");
    }
}
