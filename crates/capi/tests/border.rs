//! The C surface as a program in C uses it: handles in any order, wrong arguments, tools.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use tokenmill_capi::*;

fn c(text: &str) -> CString {
    CString::new(text).unwrap()
}

fn error() -> String {
    // SAFETY: it is a text that ends with a zero byte, in any case.
    unsafe { CStr::from_ptr(tokenmill_last_error()) }.to_str().unwrap().to_owned()
}

fn path() -> &'static CString {
    static PATH: OnceLock<(CString, tempfile::TempDir)> = OnceLock::new();
    let make = || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        tokenmill_tiny::write(&path).unwrap();
        (c(path.to_str().unwrap()), folder)
    };
    &PATH.get_or_init(make).0
}

fn open() -> *mut tokenmill_model {
    let options = c(r#"{"context": 2048, "threads": 1, "memory_bytes": 1000000000}"#);
    // SAFETY: both are texts.
    let model = unsafe { tokenmill_open(path().as_ptr(), options.as_ptr()) };
    assert!(!model.is_null(), "{}", error());
    model
}

fn chat(model: *const tokenmill_model, sampling: &str) -> *mut tokenmill_chat {
    // SAFETY: the model is one.
    unsafe {
        let chat = tokenmill_chat_new(model);
        assert_eq!(tokenmill_chat_sampling(chat, c(sampling).as_ptr()), 0, "{}", error());
        chat
    }
}

fn ask(chat: *const tokenmill_chat, question: &str, schema: Option<&str>) -> *mut tokenmill_stream {
    let schema = schema.map(c);
    // SAFETY: the chat is one, the texts live as long as the call.
    unsafe {
        tokenmill_ask(chat, c(question).as_ptr(), schema.as_ref().map_or(null(), |s| s.as_ptr()))
    }
}

/// All pieces of an answer, and how it ended.
fn read(stream: *const tokenmill_stream) -> (Vec<(i32, String, String)>, i32) {
    let mut piece = tokenmill_piece { kind: 0, text: null(), name: null() };
    let mut pieces = Vec::new();
    loop {
        // SAFETY: the stream is one, and the piece is written to before it is read.
        let more = unsafe { tokenmill_next(stream, &raw mut piece) };
        if more != 1 {
            return (pieces, more);
        }
        // SAFETY: both are texts until the next call.
        let [text, name] = [piece.text, piece.name].map(|text| unsafe { CStr::from_ptr(text) });
        let owned = |text: &CStr| text.to_str().unwrap().to_owned();
        pieces.push((piece.kind, owned(name), owned(text)));
    }
}

#[test]
fn the_header_has_every_function() {
    let header = include_str!("../include/tokenmill.h");
    let sources = [
        include_str!("../src/border.rs"),
        include_str!("../src/chat.rs"),
        include_str!("../src/model.rs"),
    ];
    let heads = sources.iter().flat_map(|text| text.split("extern \"C\" fn tokenmill_").skip(1));
    let mut count = 0;
    for head in heads {
        let (name, rest) = head.split_once('(').unwrap();
        let declared = header.split(&format!("tokenmill_{name}(")).nth(1);
        let declared =
            declared.unwrap_or_else(|| panic!("tokenmill_{name}: run crates/capi/header.sh"));
        let parameters = |list: &str| match list.split(')').next().unwrap().trim() {
            "" | "void" => 0,
            list => list.trim_end_matches(',').split(',').count(),
        };
        assert_eq!(
            parameters(declared),
            parameters(rest),
            "tokenmill_{name}: run crates/capi/header.sh"
        );
        count += 1;
    }
    assert_eq!(count, header.matches(");\n").count() - 1, "and no other (but the type of a tool)");
}

const LIMITED: &str = r#"{"seed": 2, "max_tokens": 400, "temperature": 1}"#;
const PAIR: &str = r#"{"type": "object", "properties": {"a": {"type": "integer", "minimum": -9, "maximum": 9},
    "b": {"type": "boolean"}}, "required": ["a", "b"], "additionalProperties": false}"#;

#[test]
fn handles_are_freed_in_any_order() {
    assert_eq!(tokenmill_abi_version(), TOKENMILL_ABI);
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let model = open();
        let chat = chat(model, LIMITED);
        let stream = ask(chat, "Go on.", None);
        assert!(!stream.is_null(), "{}", error());
        let mut piece = tokenmill_piece { kind: 0, text: null(), name: null() };
        for step in order {
            // SAFETY: each is freed once, and the stream is used before it is.
            unsafe {
                match step {
                    0 => tokenmill_model_free(model),
                    1 => tokenmill_chat_free(chat),
                    _ => {
                        assert!(tokenmill_next(stream, &raw mut piece) >= 0, "{}", error());
                        tokenmill_stream_free(stream);
                    }
                }
            }
        }
    }
}

#[test]
fn answers_hold_their_schema_and_chats_their_answers() {
    let model = open();
    let chat = chat(model, LIMITED);
    let stream = ask(chat, "Which?", Some(PAIR));
    assert!(!stream.is_null(), "{}", error());
    assert!(ask(chat, "And?", None).is_null());
    assert!(error().contains("an answer of this chat is being made"));
    let (pieces, end) = read(stream);
    assert_eq!(end, 0, "{}", error());
    let text: String = pieces.iter().map(|piece| piece.2.as_str()).collect();
    assert!(text.starts_with(r#"{"a":"#) && text.ends_with('}'), "{text}");
    let (mut generated, mut prompt) = (0, 0);
    // SAFETY: all handles are there until they are freed.
    unsafe {
        assert_eq!(tokenmill_stream_tokens(stream, &raw mut generated, &raw mut prompt), 0);
        assert!(generated > 5 && prompt > 5, "{generated} {prompt}");
        let next = ask(chat, "And?", None);
        assert!(!next.is_null(), "{}", error());
        assert_eq!(read(next).1, 0);
        tokenmill_stream_free(next);
        tokenmill_stream_free(stream);
        let more = tokenmill_complete(model, c("abc").as_ptr(), c(LIMITED).as_ptr());
        assert_eq!(read(more).1, 0, "{}", error());
        tokenmill_stream_free(more);
        tokenmill_chat_free(chat);
        tokenmill_model_free(model);
    }
}

unsafe extern "C" fn tool(
    data: *mut c_void,
    arguments: *const c_char,
    reply: *mut tokenmill_reply,
) -> i32 {
    // SAFETY: it is called with the counter that it was offered with, a text, and a reply.
    unsafe {
        *data.cast::<u32>() += 1;
        assert!(CStr::from_ptr(arguments).to_str().unwrap().starts_with(r#"{"a":"#));
        tokenmill_reply_text(reply, c"found".as_ptr())
    }
}

#[test]
fn functions_are_tools() {
    let model = open();
    let chat = chat(model, LIMITED);
    let mut calls = 0_u32;
    let (name, about, schema) = (c("look"), c("Looks."), c(PAIR));
    // SAFETY: texts are texts, and the counter lives longer than the chat.
    unsafe {
        let data = (&raw mut calls).cast();
        let offered = tokenmill_chat_tool(
            chat,
            name.as_ptr(),
            about.as_ptr(),
            schema.as_ptr(),
            Some(tool),
            data,
        );
        assert_eq!(offered, 0, "{}", error());
        assert_eq!(tokenmill_chat_must_call(chat, 1), 0);
        let stream = ask(chat, "Look.", None);
        let (pieces, end) = read(stream);
        assert_eq!(end, 0, "{}", error());
        let kinds = |kind| pieces.iter().filter(|piece| piece.0 == kind).count() as u32;
        assert!(calls > 0);
        assert_eq!((kinds(TOKENMILL_CALL), kinds(TOKENMILL_FOUND)), (calls, calls));
        assert!(pieces.iter().any(|(_, name, text)| name == "look" && text == "found"));
        tokenmill_stream_free(stream);
        tokenmill_chat_free(chat);
        tokenmill_model_free(model);
    }
}

#[test]
fn what_is_wrong_is_told_and_nothing_falls_over() {
    let not_utf8 = c"\xff";
    // SAFETY: null handles and wrong texts are what is tried; freeing nothing is nothing.
    unsafe {
        tokenmill_model_free(null_mut());
        tokenmill_chat_free(null_mut());
        tokenmill_stream_free(null_mut());
        assert!(tokenmill_open(null(), null()).is_null());
        assert_eq!(error(), "name is NULL");
        assert!(tokenmill_open(not_utf8.as_ptr(), null()).is_null());
        assert!(error().contains("not UTF-8"));
        assert!(tokenmill_open(c"/nowhere.gguf".as_ptr(), null()).is_null());
        assert!(error().contains("/nowhere.gguf"));
        assert!(tokenmill_open(path().as_ptr(), c"{\"ctx\": 1}".as_ptr()).is_null());
        assert!(error().contains("unknown field `ctx`"), "{}", error());
        assert!(tokenmill_chat_new(null()).is_null());
        assert_eq!(tokenmill_next(null(), null_mut()), -1);
        assert_eq!(error(), "stream is NULL");
        assert_eq!((tokenmill_context(null()), tokenmill_width(null())), (0, 0));
        let model = open();
        assert_eq!(tokenmill_context(model), 2048);
        let (texts, mut out) = ([c"a".as_ptr()], [0.0_f32; 1]);
        assert_eq!(tokenmill_embed(model, texts.as_ptr(), 1, out.as_mut_ptr(), 1), -1);
        assert!(error().contains("gives no embeddings"));
        assert_eq!(tokenmill_rerank(model, c"q".as_ptr(), texts.as_ptr(), 1, out.as_mut_ptr()), -1);
        let chat = chat(model, "{}");
        assert_eq!(tokenmill_chat_sampling(chat, c"{".as_ptr()), -1);
        assert!(error().contains("sampling is no JSON"));
        assert!(ask(chat, "x", Some(r#"{"not": {"type": "string"}}"#)).is_null());
        assert!(error().contains("not"), "{}", error());
        assert!(!ask_and_free(chat).is_empty());
        tokenmill_chat_free(chat);
        tokenmill_model_free(model);
    }
}

/// A question behind one that was refused: the chat is home again.
fn ask_and_free(chat: *const tokenmill_chat) -> Vec<(i32, String, String)> {
    let stream =
        ask(chat, "Two letters.", Some(r#"{"type": "string", "minLength": 2, "maxLength": 2}"#));
    assert!(!stream.is_null(), "{}", error());
    let (pieces, end) = read(stream);
    assert_eq!(end, 0, "{}", error());
    // SAFETY: it is freed once.
    unsafe { tokenmill_stream_free(stream) };
    pieces
}
