//! tokenmill for programs in C and all that call it. Handles are opaque, may be freed in any order and used from
//! any thread; a panic becomes an error; texts are UTF-8 that ends with a zero byte. Options, sampling and schemas
//! are JSON, so that the surface stays as it is when they grow.
#![allow(unsafe_code)]

mod border;
mod chat;
mod model;

pub use border::{TOKENMILL_ABI, tokenmill_abi_version, tokenmill_last_error};
pub use chat::{
    TOKENMILL_CALL, TOKENMILL_FOUND, TOKENMILL_REASONING, TOKENMILL_TEXT, tokenmill_ask,
    tokenmill_chat, tokenmill_chat_free, tokenmill_chat_must_call, tokenmill_chat_new,
    tokenmill_chat_sampling, tokenmill_chat_system, tokenmill_chat_tool, tokenmill_complete,
    tokenmill_next, tokenmill_piece, tokenmill_reply, tokenmill_reply_text, tokenmill_stream,
    tokenmill_stream_free, tokenmill_stream_tokens, tokenmill_tool,
};
pub use model::{
    tokenmill_context, tokenmill_embed, tokenmill_model, tokenmill_model_free, tokenmill_open,
    tokenmill_rerank, tokenmill_width,
};
