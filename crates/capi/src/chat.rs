//! Conversations, tools that are functions of the caller's, and answers as they come.

use std::ffi::{CString, c_char, c_void};
use std::sync::{Mutex, MutexGuard, TryLockError};

use tokenmill::serde_json::{Value, json};
use tokenmill::{Completion, Lent, Piece, Sampling, SharedChat, Stream, sampling_of};

use crate::border::{across, c_text, free, json, known, text, told};
use crate::model::tokenmill_model;

/// Kinds of pieces: what is said.
pub const TOKENMILL_TEXT: i32 = 0;
/// What the model thinks before.
pub const TOKENMILL_REASONING: i32 = 1;
/// A tool is called: `name`, and its arguments as JSON in `text`.
pub const TOKENMILL_CALL: i32 = 2;
/// What that tool found: `name`, and what the model is told in `text`.
pub const TOKENMILL_FOUND: i32 = 3;

/// A conversation. While an answer to it is made it takes no other question.
#[allow(non_camel_case_types)]
pub struct tokenmill_chat(SharedChat);

/// A stream that nobody else reads now: a tool must not read the one that it is called by.
fn used<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>, String> {
    match mutex.try_lock() {
        Ok(guard) => Ok(guard),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => Err("the stream is being read".to_owned()),
    }
}

/// An answer as it comes.
#[allow(non_camel_case_types)]
pub struct tokenmill_stream(Mutex<Running>);

struct Running {
    source: Source,
    /// Generated tokens, prompt tokens: known at the end.
    tokens: (u32, u32),
    /// What the last piece told points into.
    text: CString,
    name: CString,
}

enum Source {
    Chat(Box<Stream<Lent>>),
    Text(Box<Completion>),
    Ended,
}

/// Handles are used from any thread.
const _: fn() = || {
    fn is_shared<T: Send + Sync>() {}
    is_shared::<tokenmill_model>();
    is_shared::<tokenmill_chat>();
    is_shared::<tokenmill_stream>();
};

/// A piece of an answer. Its texts are valid until the next call with the same stream.
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct tokenmill_piece {
    /// `TOKENMILL_TEXT` and so on.
    pub kind: i32,
    /// The text; empty, never NULL.
    pub text: *const c_char,
    /// The tool's name; empty for texts, never NULL.
    pub name: *const c_char,
}

/// Where a tool says what it found.
#[allow(non_camel_case_types)]
pub struct tokenmill_reply(String);

/// A tool: gets what it was offered with, its arguments as JSON, and where to say what it found. 0, or anything
/// else where it failed: then its reply is told as an error. It is called on the thread that reads the stream.
#[allow(non_camel_case_types)]
pub type tokenmill_tool =
    Option<unsafe extern "C" fn(*mut c_void, *const c_char, *mut tokenmill_reply) -> i32>;

/// A pointer of the caller's, which comes back to the function that it was given with.
struct Data(*mut c_void);

// SAFETY: nothing here looks behind it; the header says on which thread it comes back.
unsafe impl Send for Data {}

/// Begins a conversation with a model. NULL: it failed.
///
/// # Safety
/// The model is one, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokenmill_chat_new(model: *const tokenmill_model) -> *mut tokenmill_chat {
    across(std::ptr::null_mut(), || {
        // SAFETY: by the caller's promise.
        let chat = unsafe { known(model, "model") }?.0.chat();
        Ok(Box::into_raw(Box::new(tokenmill_chat(SharedChat::new(chat)))))
    })
}

/// Frees a conversation. An answer that is being made goes on.
///
/// # Safety
/// It was begun here and not freed, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokenmill_chat_free(chat: *mut tokenmill_chat) {
    // SAFETY: by the caller's promise.
    unsafe { free(chat) }
}

/// Gives a conversation its instructions. 0, or -1: it failed.
///
/// # Safety
/// The chat is one or NULL, the text ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokenmill_chat_system(
    chat: *const tokenmill_chat,
    instructions: *const c_char,
) -> i32 {
    across(-1, || {
        // SAFETY: by the caller's promise.
        let (chat, said) = unsafe { (known(chat, "chat")?, text(instructions, "instructions")?) };
        chat.0
            .with(|chat| {
                chat.system(said);
                0
            })
            .map_err(told)
    })
}

/// Says how answers of a conversation are sampled from now on: NULL, or a JSON object of `temperature`, `top_k`,
/// `top_p`, `min_p`, `seed`, `max_tokens`, `stop` and so on. 0, or -1: it failed.
///
/// # Safety
/// The chat is one or NULL, the text ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokenmill_chat_sampling(
    chat: *const tokenmill_chat,
    sampling: *const c_char,
) -> i32 {
    across(-1, || {
        // SAFETY: by the caller's promise.
        let (chat, said) = unsafe { (known(chat, "chat")?, sampled(sampling)?) };
        chat.0
            .with(|chat| {
                chat.sampling = said;
                0
            })
            .map_err(told)
    })
}

/// Says whether the first answer to each question must call a tool: 0 or 1. 0, or -1: it failed.
///
/// # Safety
/// The chat is one or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokenmill_chat_must_call(chat: *const tokenmill_chat, must: i32) -> i32 {
    across(-1, || {
        // SAFETY: by the caller's promise.
        unsafe { known(chat, "chat") }?
            .0
            .with(|chat| {
                chat.must_call = must != 0;
                0
            })
            .map_err(told)
    })
}

/// Sampling that a caller says.
///
/// # Safety
/// The text is NULL or ends with a zero byte.
unsafe fn sampled(sampling: *const c_char) -> Result<Sampling, String> {
    // SAFETY: by the caller's promise.
    let said = unsafe { json(sampling, "sampling") }?;
    sampling_of(said.unwrap_or_else(|| json!({}))).map_err(told)
}

/// Offers a tool by the JSON Schema of its arguments, in the place of any of its name. `data` comes back with every
/// call and must live as long as the chat and its streams. 0, or -1: it failed.
///
/// # Safety
/// The chat is one or NULL, texts end with a zero byte, `tool` may be called with `data` on any thread that reads a
/// stream of this chat.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokenmill_chat_tool(
    chat: *const tokenmill_chat,
    name: *const c_char,
    about: *const c_char,
    schema: *const c_char,
    tool: tokenmill_tool,
    data: *mut c_void,
) -> i32 {
    across(-1, || {
        // SAFETY: by the caller's promise.
        let (chat, name, about, schema) = unsafe {
            (
                known(chat, "chat")?,
                text(name, "name")?,
                text(about, "about")?,
                json(schema, "schema")?,
            )
        };
        let (Some(schema), Some(tool)) = (schema, tool) else {
            return Err("schema or tool is NULL".to_owned());
        };
        let data = Data(data);
        chat.0
            .with(|chat| {
                chat.tool_of_schema(name, about, schema, move |arguments| {
                    let data = &data;
                    let (arguments, mut reply) =
                        (c_text(&arguments.to_string()), tokenmill_reply(String::new()));
                    // SAFETY: the caller promises that it may be called with that.
                    let failed = unsafe { tool(data.0, arguments.as_ptr(), &raw mut reply) } != 0;
                    if failed { Err(reply.0.into()) } else { Ok(reply.0) }
                });
                0
            })
            .map_err(told)
    })
}

/// Says what a tool found, in the place of anything said before. 0, or -1: it failed.
///
/// # Safety
/// The reply is the one that the tool was called with, and that call has not ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokenmill_reply_text(
    reply: *mut tokenmill_reply,
    found: *const c_char,
) -> i32 {
    across(-1, || {
        // SAFETY: by the caller's promise.
        let (reply, found) = unsafe { (reply.as_mut(), text(found, "found")?) };
        reply.ok_or("reply is NULL")?.0 = found.to_owned();
        Ok(0)
    })
}

/// Asks in a conversation. `schema` is NULL, or a JSON Schema that the answer holds: then its text is a value of
/// it. NULL: it failed.
///
/// # Safety
/// The chat is one or NULL, texts end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokenmill_ask(
    chat: *const tokenmill_chat,
    question: *const c_char,
    schema: *const c_char,
) -> *mut tokenmill_stream {
    across(std::ptr::null_mut(), || {
        // SAFETY: by the caller's promise.
        let (chat, question, schema) =
            unsafe { (known(chat, "chat")?, text(question, "question")?, json(schema, "schema")?) };
        let stream = chat.0.stream(question, schema).map_err(told)?;
        Ok(running(Source::Chat(Box::new(stream))))
    })
}

/// Goes on with a text. `sampling` is as of `tokenmill_chat_sampling`. NULL: it failed.
///
/// # Safety
/// The model is one or NULL, texts end with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokenmill_complete(
    model: *const tokenmill_model,
    prompt: *const c_char,
    sampling: *const c_char,
) -> *mut tokenmill_stream {
    across(std::ptr::null_mut(), || {
        // SAFETY: by the caller's promise.
        let (model, prompt, sampling) =
            unsafe { (known(model, "model")?, text(prompt, "prompt")?, sampled(sampling)?) };
        let completion = model.0.complete(prompt, &sampling).map_err(told)?;
        Ok(running(Source::Text(Box::new(completion))))
    })
}

fn running(source: Source) -> *mut tokenmill_stream {
    let (tokens, text, name) = Default::default();
    let running = Running { source, tokens, text, name };
    Box::into_raw(Box::new(tokenmill_stream(Mutex::new(running))))
}

/// Waits for the next piece. 1: it is in `piece`; 0: the answer is whole; -1: it failed, and ends with that.
///
/// # Safety
/// The stream is one or NULL, `piece` may be written to or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokenmill_next(
    stream: *const tokenmill_stream,
    piece: *mut tokenmill_piece,
) -> i32 {
    across(-1, || {
        // SAFETY: by the caller's promise.
        let (stream, piece) = unsafe { (known(stream, "stream")?, piece.as_mut()) };
        let piece = piece.ok_or("piece is NULL")?;
        let mut running = used(&stream.0)?;
        let next = match &mut running.source {
            Source::Chat(stream) => {
                let next = stream.next();
                let usage = stream.ending().1;
                running.tokens = (usage.completion_tokens, usage.prompt_tokens);
                next
            }
            Source::Text(completion) => {
                let next = completion.next();
                let usage = completion.usage().unwrap_or_default();
                running.tokens = (usage.completion_tokens, usage.prompt_tokens);
                next.map(|text| text.map(Piece::Text))
            }
            Source::Ended => None,
        };
        let Some(next) = next else {
            running.source = Source::Ended; // (a chat goes home)
            return Ok(0);
        };
        let next = match next {
            Ok(next) => next,
            Err(error) => {
                running.source = Source::Ended;
                return Err(told(error));
            }
        };
        let (kind, name, text) = parts(next);
        (running.name, running.text) = (c_text(&name), c_text(&text));
        *piece = tokenmill_piece { kind, text: running.text.as_ptr(), name: running.name.as_ptr() };
        Ok(1)
    })
}

fn parts(piece: Piece) -> (i32, String, String) {
    let json = |value: Value| value.to_string();
    match piece {
        Piece::Text(text) => (TOKENMILL_TEXT, String::new(), text),
        Piece::Reasoning(text) => (TOKENMILL_REASONING, String::new(), text),
        Piece::Call { name, arguments } => (TOKENMILL_CALL, name, json(arguments)),
        Piece::Found { name, text } => (TOKENMILL_FOUND, name, text),
    }
}

/// Tokens that were generated, and with `prompt` those that were read; of an answer that is whole. 0, or -1: it failed.
///
/// # Safety
/// The stream is one or NULL, numbers may be written to or are NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokenmill_stream_tokens(
    stream: *const tokenmill_stream,
    generated: *mut u32,
    prompt: *mut u32,
) -> i32 {
    across(-1, || {
        // SAFETY: by the caller's promise.
        let (stream, generated, prompt) =
            unsafe { (known(stream, "stream")?, generated.as_mut(), prompt.as_mut()) };
        let tokens = used(&stream.0)?.tokens;
        generated.into_iter().for_each(|number| *number = tokens.0);
        prompt.into_iter().for_each(|number| *number = tokens.1);
        Ok(0)
    })
}

/// Frees an answer; nothing more of it is computed.
///
/// # Safety
/// It was begun here and not freed, or is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tokenmill_stream_free(stream: *mut tokenmill_stream) {
    // SAFETY: by the caller's promise.
    unsafe { free(stream) }
}
