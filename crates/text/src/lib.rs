//! Text in and out: tokenizers, UTF-8-safe streaming with stop strings, chat templates.
//!
//! Pure: no file, network, thread, environment or clock; bytes and the time come in as arguments.

mod bpe;
mod byte_level;
mod charsmap;
mod encoder;
mod gguf_vocab;
mod go;
mod hf_bytes;
mod hf_config;
mod hf_json;
mod infill;
mod lint;
mod normalizer;
mod pretokenize;
mod ranked;
mod shown;
mod specials;
mod spelling;
mod stream;
mod template;
mod tokenizer;
mod turn_ends;

pub use encoder::{Encoder, IMAGE, Reach};
pub use gguf_vocab::{GgufVocab, TokenType};
pub use go::{GoError, from_go};
pub use hf_config::HfTokenizerConfig;
pub use infill::{Before, Beside};
pub use lint::{Finding, Severity, lint, warnings};
pub use stream::{Lead, StopSearch, StreamPiece, TextStream};
pub use template::{
    ChatTemplate, DateTime, RenderOptions, RenderedPrompt, TemplateError, TemplateTokens, spelled,
};
pub use tokenizer::{MAX_TEXT_BYTES, Special, Tokenizer, TokenizerError};
