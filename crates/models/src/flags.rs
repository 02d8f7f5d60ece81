//! Flags of config.json beside the tensors of the file. Presence decides what is computed; a flag
//! that says otherwise would make transformers leave a tensor out, so the two must agree.

use tokenmill_ir::{Mask, MetaValue};

use crate::error::ModelError;
use crate::hyper::Hyper;
use crate::names::{Role, bias_of, find_opt};
use crate::spec::{Body, Mixer, ModelSpec, Output};

/// Flags for biases, and whose.
const BIASES: &[(&str, &[Role])] = &[
    (
        "attention_bias",
        &[
            Role::Q,
            Role::K,
            Role::V,
            Role::Qkv,
            Role::QkvByHead,
            Role::O,
            Role::QLoraDown,
            Role::KvLoraDown,
        ],
    ),
    ("attention_out_bias", &[Role::O]),
    ("qkv_bias", &[Role::Q, Role::K, Role::V]),
    ("use_qkv_bias", &[Role::Q, Role::K, Role::V]),
    ("mlp_bias", &[Role::Gate, Role::Up, Role::GateUp, Role::Down]),
    (
        "use_bias",
        &[Role::Q, Role::K, Role::V, Role::O, Role::Up, Role::Down, Role::MambaIn, Role::MambaOut],
    ),
    ("mamba_proj_bias", &[Role::MambaIn]),
    ("projectors_bias", &[Role::MambaOut]),
    ("use_conv_bias", &[Role::MambaConv]),
    ("mamba_conv_bias", &[Role::MambaConv]),
    ("conv_bias", &[Role::ConvIn, Role::ConvTaps, Role::ConvOut]),
    ("norm_bias", &[Role::MixerNorm, Role::FfnNorm, Role::FinalNorm, Role::EmbedNorm]),
    ("classifier_bias", &[Role::ScoreDense]),
];

/// Flags for norms that have weights: families, key, whose.
const NORMS: &[(&[&str], &str, Role)] = &[
    (&["cohere", "glm4_moe"], "use_qk_norm", Role::QNorm),
    (&["stablelm", "phi"], "qk_layernorm", Role::QNorm),
    (&["falcon_h1"], "mamba_rms_norm", Role::MambaNorm),
];

/// Refuses flags that contradict the tensors.
///
/// # Errors
/// [`ModelError::Unsupported`] with the flag.
pub fn check(h: &Hyper<'_>, spec: &ModelSpec) -> Result<(), ModelError> {
    positions(h, spec)?;
    causal(h, spec)?;
    norms(h)?;
    let Some(class) = h.class() else { return Ok(()) };
    let layers = spec.layers.len();
    for (key, roles) in BIASES.iter().filter(|(key, _)| class.knows(key)) {
        let Some(said) = h.meta().opt_bool(key)? else { continue };
        // Where outputs have a flag of their own, this one is not theirs.
        let others = *key != "attention_out_bias" && class.knows("attention_out_bias");
        let own = roles.iter().filter(|role| **role != Role::O || !others);
        let found =
            own.flat_map(|r| (0..layers).map(move |l| (*r, l))).find_map(|(role, layer)| {
                let tensor = find_opt(h.checkpoint(), role, layer, 0)?;
                bias_of(h.checkpoint(), tensor)
            });
        match (said, found) {
            (false, Some(bias)) => {
                let found = format!("false beside a tensor '{}'", bias.name);
                return Err(ModelError::unsupported(key, found));
            }
            (true, None) => return Err(ModelError::unsupported(key, "true without such tensors")),
            _ => {}
        }
    }
    for (_, key, role) in NORMS.iter().filter(|(families, ..)| families.contains(&class.name)) {
        let said = h.meta().opt_bool(key)?.unwrap_or(false);
        let there = find_opt(h.checkpoint(), *role, 0, 0).is_some();
        if said != there {
            let found = format!("{said} {} norm weights", if there { "beside" } else { "without" });
            return Err(ModelError::unsupported(key, found));
        }
    }
    head(h, spec)
}

/// Whether the output head may be the embedding, where the file has no head. Where it has one, that
/// is taken, as transformers does.
fn head(h: &Hyper<'_>, spec: &ModelSpec) -> Result<(), ModelError> {
    let class = h.class();
    let is_logits = matches!(spec.output, Output::Logits { .. });
    let names = h.checkpoint().meta.opt_list("architectures")?.unwrap_or_default();
    let generates = names.iter().filter_map(MetaValue::as_str);
    let mut generates = generates.filter(|n| {
        ["ForCausalLM", "LMHeadModel", "ForConditionalGeneration"].iter().any(|e| n.ends_with(e))
    });
    for key in ["tie_word_embeddings", "tie_embedding"] {
        h.meta().note(key);
    }
    if !is_logits
        || generates.next().is_none()
        || find_opt(h.checkpoint(), Role::Head, 0, 0).is_some()
    {
        return Ok(());
    }
    let whole = &h.checkpoint().meta;
    let inner = whole.get("text_config").is_some();
    let mut tied = whole.opt_bool("tie_word_embeddings")?;
    if inner || tied.is_none() {
        let own =
            class.filter(|c| c.reads("tie_embedding")).map(|_| h.meta().opt_bool("tie_embedding"));
        tied = tied.or(own.transpose()?.flatten());
        // (The default of a model around this one may differ from its text part's.)
        let usual = !inner || h.meta().is_written("tie_word_embeddings");
        tied = tied.or(h.meta().opt_bool("tie_word_embeddings")?.filter(|_| usual));
    }
    match tied {
        Some(false) => {
            let found = "false, and the file has no 'lm_head.weight'";
            Err(ModelError::unsupported("tie_word_embeddings", found))
        }
        _ => Ok(()),
    }
}

/// GGUF files may have an epsilon for each kind of norm; only one kind is computed.
fn norms(h: &Hyper<'_>) -> Result<(), ModelError> {
    let keys = ["attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"];
    let [rms, layer] = keys.map(|key| h.meta().opt_f32(&h.own("", key)));
    match (rms?, layer?) {
        (Some(rms), Some(layer)) if rms != layer => {
            let found = format!("{rms} beside an epsilon of {layer} for layer norms");
            Err(ModelError::unsupported(&h.own("", keys[0]), found))
        }
        _ => Ok(()),
    }
}

/// GGUF says of some models whether tokens see those behind them. In config.json no configuration
/// class has the key, but transformers' masks of decoders ask for it.
fn causal(h: &Hyper<'_>, spec: &ModelSpec) -> Result<(), ModelError> {
    const HF: &str = "is_causal";
    let key = h.own(HF, "attention.causal");
    let said = match h.is_gguf() {
        true => h.meta().opt_bool(&key)?,
        false => h.meta().foreign().opt_bool(HF)?.filter(|causal| !causal),
    };
    let Some(said) = said else { return Ok(()) };
    let branches = spec.layers.iter().flat_map(|l| &l.branches);
    let mut mixers = branches.filter_map(|b| match &b.body {
        Body::Mix(mixers) => Some(mixers),
        _ => None,
    });
    let both = |m: &Mixer| match m {
        Mixer::Attention(a) => matches!(a.mask, Mask::None | Mask::Around(_) | Mask::Block),
        _ => false,
    };
    match mixers.any(|m| m.iter().any(both)) == said {
        true => Err(ModelError::unsupported(&key, said)),
        false => Ok(()),
    }
}

/// A table of positions has a row for each.
fn positions(h: &Hyper<'_>, spec: &ModelSpec) -> Result<(), ModelError> {
    let table = find_opt(h.checkpoint(), Role::EmbedPositions, 0, 0);
    let (Some(first), Some(table)) = (spec.embed.positions, table) else { return Ok(()) };
    let (rows, wanted) = (table.rows(), u64::from(spec.context) + u64::from(first));
    // The context of a GGUF file may be shorter, as its maker chose.
    match rows == wanted || h.is_gguf() && rows > wanted {
        true => Ok(()),
        false => {
            let key = h.name(crate::hyper::CONTEXT);
            let wanted = spec.context.saturating_add(first);
            Err(ModelError::unsupported(&key, format!("{wanted} beside {rows} positions")))
        }
    }
}
