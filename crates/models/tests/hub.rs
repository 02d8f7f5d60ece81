//! Files of widely used repositories with the fewest tensors that go with them: none is refused for
//! a harmless key, and what is read of each is right.
//!
//! `hub/USER__REPOSITORY.json` is a `config.json` (long lists of module names cut), `hub/gguf.txt`
//! has the keys that converters write. `hub/facts.txt` says of each what must be read, or which key
//! it is refused for.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use tokenmill_files::hf_config;
use tokenmill_ir::{
    Checkpoint, Container, Extent, GateAct, Mask, Meta, MetaValue, RopePairing, TensorInfo,
};
use tokenmill_models::spec::*;
use tokenmill_models::{ModelError, spec_of};
use tokenmill_quant::FormatId;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hub")
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn configurations_of_repositories_are_read_as_they_are_meant() {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder()).expect("folder").map(|e| e.expect("file").path()).collect();
    paths.retain(|p| p.extension().is_some_and(|e| e == "json"));
    paths.sort();
    let mut found = String::new();
    for path in paths {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let meta = hf_config::parse(&path, text(&path).as_bytes()).expect("JSON");
        let said = match hf_config::check_quantization(&path, &meta) {
            Ok(()) => said(spec_of(&checkpoint(Container::Hf, &tensors(&meta), meta))),
            Err(e) => format!("refused: {e}"),
        };
        writeln!(found, "{name}: {said}").expect("text");
    }
    compare(&found, "[config.json]");
}

#[test]
fn keys_of_converters_are_read_as_they_are_meant() {
    let file = text(&folder().join("gguf.txt"));
    let mut found = String::new();
    for section in file.split("\n[").skip(1) {
        let (name, lines) = section.split_once("]\n").expect("[name]");
        let mut meta = Meta::new();
        let mut names = vec![("token_embd.weight".to_owned(), 100)];
        for line in lines.lines().filter(|l| !l.is_empty()) {
            match (line.split_once(" = "), line.strip_suffix(" tensor")) {
                (Some((key, value)), _) => {
                    let json = format!("{{\"x\":{value}}}");
                    let value = hf_config::parse(Path::new(name), json.as_bytes()).expect(line);
                    meta.insert(key.to_owned(), value.get("x").cloned().expect(line));
                }
                (None, Some(tensor)) => names.push((tensor.to_owned(), 1)),
                _ => panic!("{name}: {line}"),
            }
        }
        for (key, value) in meta.iter().filter_map(|(k, v)| Some((k, v.as_u32()?))) {
            match key.split_once('.') {
                Some((_, "block_count")) => {
                    names.extend((0..value).map(|i| (format!("layer.{i}"), 1)));
                }
                Some((_, "vocab_size")) => names[0].1 = value.into(),
                Some((_, "context_length")) => {
                    let table = names.iter_mut().find(|(name, _)| name == "position_embd.weight");
                    table.into_iter().for_each(|(_, rows)| *rows = value.into());
                }
                _ => {}
            }
        }
        let said = said(spec_of(&checkpoint(Container::Gguf, &names, meta)));
        writeln!(found, "{name}: {said}").expect("text");
    }
    compare(&found, "[gguf]");
}

/// Line by line with what `facts.txt` has under that heading.
fn compare(found: &str, heading: &str) {
    let facts = text(&folder().join("facts.txt"));
    let (_, facts) = facts.split_once(&format!("{heading}\n")).expect("heading");
    let facts = facts.split("\n[").next().unwrap_or_default().trim();
    let wrong: Vec<String> = found
        .lines()
        .filter(|line| !facts.lines().any(|fact| fact == *line))
        .map(str::to_owned)
        .collect();
    assert!(wrong.is_empty(), "not in facts.txt under {heading}:\n{}", wrong.join("\n"));
    assert_eq!(found.lines().count(), facts.lines().count(), "lines of facts.txt under {heading}");
}

/// Tensors that a repository with such a configuration has, as far as they decide: names and rows.
fn tensors(meta: &Meta) -> Vec<(String, u64)> {
    let part = match meta.get("text_config") {
        Some(MetaValue::Map(part)) => part,
        _ => meta,
    };
    let yes = |key: &str| part.get(key) == Some(&MetaValue::Bool(true));
    let number = |key: &str| part.get(key).and_then(MetaValue::as_u32).unwrap_or(0);
    let kind = part.get("model_type").or(meta.get("model_type")).and_then(MetaValue::as_str);
    let kind = kind.unwrap_or_default();
    let tokens = if number("vocab_size") > 0 { number("vocab_size") } else { 100 };
    let mut names = vec![("model.embed_tokens.weight".to_owned(), u64::from(tokens))];
    let mut add = |name: &str, rows: u32| names.push((name.to_owned(), u64::from(rows)));
    let layers = ["num_hidden_layers", "n_layer", "num_layers", "n_layers"];
    // (Where it says none its class does.)
    let layers = Some(layers.iter().map(|key| number(key)).sum()).filter(|n| *n > 0).unwrap_or(64);
    (0..layers).for_each(|i| add(&format!("layer.{i}"), 1));
    if meta.get("tie_word_embeddings").or(part.get("tie_word_embeddings"))
        == Some(&MetaValue::Bool(false))
    {
        add("lm_head.weight", 100);
    }
    if !yes("use_parallel_residual") {
        add("model.layers.0.post_attention_layernorm.weight", 1);
    }
    let biased = ["qwen2_moe", "gpt_neox", "starcoder2"].contains(&kind);
    if biased || yes("attention_bias") || yes("use_qkv_bias") {
        add("model.layers.0.self_attn.q_proj.weight", 1);
        add("model.layers.0.self_attn.q_proj.bias", 1);
    }
    if yes("use_qk_norm") {
        add("model.layers.0.self_attn.q_norm.weight", 1);
    }
    for (flag, module) in [
        ("use_conv_bias", "backbone.layers.0.mixer.conv1d"),
        ("mamba_conv_bias", "model.layers.0.mamba.conv1d"),
    ] {
        if yes(flag) {
            add(&format!("{module}.weight"), 1);
            add(&format!("{module}.bias"), 1);
        }
    }
    add("embeddings.position_embeddings.weight", number("max_position_embeddings"));
    add("wpe.weight", number("n_positions"));
    add("model.layers.0.laurel.linear_left.weight", number("laurel_rank"));
    names.retain(|(_, rows)| *rows > 0);
    names
}

fn checkpoint(container: Container, names: &[(String, u64)], meta: Meta) -> Checkpoint {
    let tensor = |(name, rows): &(String, u64)| TensorInfo {
        name: name.clone(),
        format: FormatId::F32,
        shape: vec![*rows, 64],
        extent: Extent { file: 0, offset: 0, len: 0 },
        order: None,
    };
    Checkpoint::new(container, meta, names.iter().map(tensor).collect()).expect("names")
}

/// What was read, in one line: layers that are alike together, in the order they first come.
fn said(spec: Result<ModelSpec, ModelError>) -> String {
    let spec = match spec {
        Ok(spec) => spec,
        Err(e) => return format!("refused: {e}"),
    };
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for layer in &spec.layers {
        let parts = layer.branches.iter().filter_map(|b| match &b.body {
            Body::Mix(mixers) => Some(mixers.iter().map(mixer).collect::<Vec<_>>().join(" + ")),
            Body::Ffn(ffn) => Some(feed_forward(ffn)),
            Body::LayerInput(_) => None,
        });
        let kind = parts.collect::<Vec<_>>().join(", ");
        match kinds.iter_mut().find(|(k, _)| *k == kind) {
            Some((_, count)) => *count += 1,
            None => kinds.push((kind, 1)),
        }
    }
    let mut line = spec.context.to_string();
    for (kind, count) in kinds {
        write!(line, "; {count} × {kind}").expect("text");
    }
    if spec.embed.scale != 1.0 {
        line += &format!("; embedding x{:.4}", spec.embed.scale);
    }
    line += &match &spec.output {
        Output::Logits { scale, softcap } => {
            let scale = if *scale == 1.0 { String::new() } else { format!("; logits x{scale:.4}") };
            format!("{scale}{}", softcap.map(|c| format!("; logits to {c}")).unwrap_or_default())
        }
        Output::Pooled { kind, .. } => format!("; pooled {kind:?}"),
        Output::Projected { cols, frame } => format!("; {cols} of the last row, {frame:?}"),
        Output::Score { kind, .. } => format!("; score of {kind:?}"),
        Output::Hidden => "; hidden".to_owned(),
    };
    line
}

fn mixer(mixer: &Mixer) -> String {
    match mixer {
        Mixer::Attention(a) => {
            let mut line = format!("{}/{} of {}", a.heads, a.kv_heads, a.head_dim);
            line += &a.rope.as_ref().map(rotation).unwrap_or_default();
            if (a.scale * (a.head_dim as f32).sqrt() - 1.0).abs() > 1e-4 {
                line += &format!(" x{:.5}", a.scale);
            }
            match a.mask {
                Mask::Causal => {}
                Mask::None => line += " both ways",
                Mask::Window(n) => line += &format!(" window {n}"),
                Mask::Chunk(n) => line += &format!(" chunk {n}"),
                Mask::Around(n) => line += &format!(" around {n}"),
                Mask::Block => line += " by blocks",
            }
            for (is, word) in [
                (a.position_scale.is_some(), " growing"),
                (a.sinks, " sinks"),
                (a.softcap.is_some(), " capped"),
                (matches!(a.kv, KvSource::Layer(_)), " borrowed"),
            ] {
                line += if is { word } else { "" };
            }
            line
        }
        Mixer::Latent(l) => {
            format!("{} of {}+{}{} x{:.5}", l.heads, l.nope, l.rope_dim, rotation(&l.rope), l.scale)
        }
        Mixer::DeltaNet(d) => format!("delta {}/{} of {}", d.v_heads, d.k_heads, d.v_dim),
        Mixer::Mamba(m) => format!("mamba {} of {} state {}", m.heads, m.head_dim, m.state_dim),
        Mixer::ShortConv(c) => format!("conv {}", c.kernel),
    }
}

fn rotation(rope: &RopeSpec) -> String {
    let pairs = if rope.pairing == RopePairing::Half { "" } else { " pairs" };
    let stretch = match &rope.scaling {
        RopeScaling::None => String::new(),
        RopeScaling::Linear { factor } => format!(" linear {factor}"),
        RopeScaling::Llama3 { factor, original, .. } => format!(" llama3 {factor} {original}"),
        RopeScaling::Yarn { factor, original, magnitude, .. } => {
            format!(" yarn {factor} {original} x{magnitude:.4}")
        }
        RopeScaling::Factors { magnitude, .. } => format!(" factors x{magnitude:.4}"),
        RopeScaling::Proportional { part } => format!(" part {part}"),
        RopeScaling::Tensor { magnitude } => format!(" tensor x{magnitude}"),
    };
    format!(" rope {} {}{pairs}{stretch}", rope.dims, rope.theta)
}

fn feed_forward(ffn: &Ffn) -> String {
    let experts = |e: &Experts| {
        let shared = e.shared.map(|s| format!(" and {}", s.width)).unwrap_or_default();
        let score = format!("{:?}", e.score).to_lowercase();
        let groups = e.groups.map(|g| format!(" in {} of {} groups", g.keep, g.groups));
        let groups = groups.unwrap_or_default();
        let (top, all, width) = (e.top, e.count, e.width);
        let scale = if e.scale == 1.0 { String::new() } else { format!(" x{}", e.scale) };
        format!("{top} of {all} experts {width}{groups} by {score}{scale}{shared}")
    };
    match ffn {
        Ffn::Gated { width, act: GateAct::Plain(act), .. } => format!("gated {width} {act:?}"),
        Ffn::Gated { width, act, .. } => format!("gated {width} {act:?}"),
        Ffn::Plain { width, act } => format!("plain {width} {act:?}"),
        Ffn::Swish { width, beta } => format!("plain {width} swish {beta}"),
        Ffn::Experts(e) => experts(e),
        Ffn::Beside { width, experts: e, .. } => format!("gated {width} beside {}", experts(e)),
    }
}
