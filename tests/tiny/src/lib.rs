//! A random model small enough for tests of what stands above the engine: one layer of Llama, a token for
//! every byte, a chat template with roles and tools. It writes nonsense, and what holds an answer holds
//! its answers too.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use tokenmill_files::write::{TensorHeader, write_gguf};
use tokenmill_ir::sampling::splitmix;
use tokenmill_ir::{Meta, MetaValue};
use tokenmill_quant::FormatId;

/// Columns of a hidden row, of a head, of what the feed-forward part has inside.
const HIDDEN: u64 = 32;
const HEAD: u64 = 8;
const INNER: u64 = 64;
/// Longest text, tokens.
pub const CONTEXT: u32 = 4096;

/// Begins and ends a turn.
const START: &str = "<|im_start|>";
const END: &str = "<|im_end|>";

const TEMPLATE: &str = "{%- if tools %}<|im_start|>system\n<tools>\n{%- for tool in tools %}\n{{ tool | tojson }}\
    {%- endfor %}\n</tools><|im_end|>\n{% endif %}{%- for m in messages %}<|im_start|>{{ m.role }}\n\
    {{ m.content if m.content is string else '' }}{%- if m.tool_calls %}{%- for call in m.tool_calls %}\
    \n<tool_call>\n{\"name\": \"{{ call.function.name }}\", \"arguments\": {{ call.function.arguments | tojson }}}\
    \n</tool_call>{%- endfor %}{%- endif %}<|im_end|>\n{% endfor %}{%- if add_generation_prompt %}\
    <|im_start|>assistant\n{% endif %}";

/// How GPT-2's vocabularies spell a byte.
fn spelled(byte: u8) -> char {
    let is_shown = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let before =
        (0..byte).filter(|b| !matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)).count();
    match is_shown {
        true => char::from(byte),
        false => char::from_u32(256 + before as u32).unwrap_or(' '),
    }
}

fn tokens() -> Vec<String> {
    let bytes = (0..=u8::MAX).map(|byte| spelled(byte).to_string());
    // (A vocabulary of this kind has a merge.)
    bytes.chain(["th", START, END].map(str::to_owned)).collect()
}

fn meta() -> Meta {
    let mut meta = Meta::new();
    let text = |text: &str| MetaValue::Str(text.to_owned());
    let tokens = tokens();
    let control = |token: &String| token == START || token == END;
    let kinds = tokens.iter().map(|token| MetaValue::Int(if control(token) { 3 } else { 1 }));
    let end = tokens.iter().position(|token| token == END).unwrap_or_default() as i64;
    for (key, value) in [
        ("general.architecture", text("llama")),
        ("general.name", text("tiny")),
        ("llama.block_count", MetaValue::Int(1)),
        ("llama.context_length", MetaValue::Int(CONTEXT.into())),
        ("llama.embedding_length", MetaValue::Int(HIDDEN as i64)),
        ("llama.feed_forward_length", MetaValue::Int(INNER as i64)),
        ("llama.attention.head_count", MetaValue::Int((HIDDEN / HEAD) as i64)),
        ("llama.attention.head_count_kv", MetaValue::Int(2)),
        ("llama.attention.layer_norm_rms_epsilon", MetaValue::Float(1e-5)),
        ("llama.rope.dimension_count", MetaValue::Int(HEAD as i64)),
        ("llama.rope.freq_base", MetaValue::Float(10_000.0)),
        ("llama.vocab_size", MetaValue::Int(tokens.len() as i64)),
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text("gpt-2")),
        ("tokenizer.ggml.merges", MetaValue::List(vec![text("t h")])),
        ("tokenizer.ggml.token_type", MetaValue::List(kinds.collect())),
        ("tokenizer.ggml.tokens", MetaValue::List(tokens.iter().map(|t| text(t)).collect())),
        ("tokenizer.ggml.eos_token_id", MetaValue::Int(end)),
        ("tokenizer.chat_template", text(TEMPLATE)),
    ] {
        meta.insert(key.to_owned(), value);
    }
    meta
}

/// Writes it.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path) -> io::Result<()> {
    let vocab = tokens().len() as u64;
    let keys = 2 * HEAD;
    let tensors = [
        ("token_embd.weight", vec![vocab, HIDDEN]),
        ("output.weight", vec![vocab, HIDDEN]),
        ("output_norm.weight", vec![HIDDEN]),
        ("blk.0.attn_norm.weight", vec![HIDDEN]),
        ("blk.0.attn_q.weight", vec![HIDDEN, HIDDEN]),
        ("blk.0.attn_k.weight", vec![keys, HIDDEN]),
        ("blk.0.attn_v.weight", vec![keys, HIDDEN]),
        ("blk.0.attn_output.weight", vec![HIDDEN, HIDDEN]),
        ("blk.0.ffn_norm.weight", vec![HIDDEN]),
        ("blk.0.ffn_gate.weight", vec![INNER, HIDDEN]),
        ("blk.0.ffn_up.weight", vec![INNER, HIDDEN]),
        ("blk.0.ffn_down.weight", vec![HIDDEN, INNER]),
    ]
    .map(|(name, shape)| TensorHeader { name: name.to_owned(), format: FormatId::F32, shape });
    let mut out = BufWriter::new(File::create(path)?);
    let mut state = 1u64;
    write_gguf(&mut out, &meta(), &tensors, |tensor, out| {
        let count: u64 = tensor.shape.iter().product();
        for _ in 0..count {
            state = splitmix(state);
            // -0.5 to 0.5; a norm's factors are 1.
            let random = (state >> 40) as f32 / (1 << 24) as f32 - 0.5;
            let number = if tensor.shape.len() == 1 { 1.0 } else { random };
            out.write_all(&number.to_le_bytes())?;
        }
        Ok(())
    })?;
    out.flush()
}
