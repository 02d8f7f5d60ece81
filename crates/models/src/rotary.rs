//! The rotary embedding as files state it: base, rotated columns and stretching, wherever this
//! generation of configs keeps them. config.json is understood as transformers' classes do
//! (`modeling_rope_utils.py`): a key inside `rope_scaling` or `rope_parameters` comes before one at
//! the top, and that before the class's default.

use tokenmill_ir::{Meta, MetaError, MetaValue, RopePairing};

use crate::error::ModelError;
use crate::hyper::{CONTEXT, Hyper, ROPE_DIMS};
use crate::params::shown;
use crate::ranges;
use crate::spec::{Axes, RopeScaling, RopeSpec};

/// Ways to stretch and the keys each reads.
const TYPES: &[(&str, &[&str])] = &[
    ("default", &[]),
    ("linear", &["factor"]),
    ("dynamic", &["factor"]),
    ("llama3", &["factor", "low_freq_factor", "high_freq_factor"]),
    ("longrope", &["short_factor", "long_factor", "factor", "attention_factor"]),
    ("proportional", &["factor"]),
    (
        "yarn",
        &[
            "factor",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        ],
    ),
];

/// Keys of every way. Sections of positions are the same for text; whether training knew the
/// stretching changes nothing.
const ALWAYS: &[&str] = &[
    "rope_type",
    "type",
    "rope_theta",
    "partial_rotary_factor",
    "original_max_position_embeddings",
    "max_position_embeddings",
    "mrope_section",
    "mrope_interleaved",
    "finetuned",
];

impl Hyper<'_> {
    /// The rotation of a family's heads.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for ways to stretch that are not known and impossible widths.
    pub fn rope(&self, head_dim: u32, pairing: RopePairing) -> Result<RopeSpec, ModelError> {
        let dims = self.rotated(head_dim)?;
        let scaling = self.rope_scaling("")?;
        if let RopeScaling::Factors { factors, .. } = &scaling
            && factors.len() != dims as usize / 2
        {
            let found = format!("{} numbers for {} pairs", factors.len(), dims / 2);
            return Err(ModelError::unsupported(&self.rope_key("", "short_factor"), found));
        }
        Ok(RopeSpec { dims, theta: self.theta("")?, pairing, scaling, axes: Axes::One })
    }

    /// Rotated columns of a head.
    fn rotated(&self, head_dim: u32) -> Result<u32, ModelError> {
        let (key, dims) = match self.is_gguf() {
            true => match self.opt_u32(ROPE_DIMS)? {
                Some(dims) => (self.name(ROPE_DIMS), dims),
                None => (self.head_key(), head_dim),
            },
            false => {
                let (key, part) = self.part(head_dim)?;
                let dims = (f64::from(head_dim) * part) as u32;
                (key.unwrap_or_else(|| self.head_key()), dims)
            }
        };
        if dims == 0 || dims % 2 != 0 || dims > head_dim {
            let found = format!(
                "{dims} of {head_dim} columns rotated (head_dim, or hidden_size over \
                num_attention_heads)"
            );
            return Err(ModelError::unsupported(&key, found));
        }
        Ok(dims)
    }

    /// The rotated part of a head, and the key that says so, if one does.
    fn part(&self, head_dim: u32) -> Result<(Option<String>, f64), ModelError> {
        let params = self.meta();
        let mut part = self.rope_number("partial_rotary_factor")?;
        let own = self.class().is_some_and(|c| c.reads("rotary_pct"));
        let top = if own { "rotary_pct" } else { "partial_rotary_factor" };
        let mut key = match part {
            Some(_) => self.rope_key("", "partial_rotary_factor"),
            None => top.to_owned(),
        };
        part = part.or(params.opt_f64(top)?);
        if let (None, Some(dims)) = (part, params.opt_f64("rotary_dim")?) {
            (key, part) = ("rotary_dim".to_owned(), Some(dims / f64::from(head_dim.max(1))));
        }
        let usual = self.class().map_or(Some(1.0), |c| c.partial());
        match (part, usual) {
            (Some(part), Some(_)) => Ok((Some(key), part)),
            (None, Some(usual)) => Ok((None, usual)),
            // (The part of such a rotation is one of its frequencies.)
            (Some(_), None) if self.rope_type("")?.1 == "proportional" => Ok((None, 1.0)),
            (Some(part), None) if part != 1.0 => Err(ModelError::unsupported(&key, part)),
            _ => Ok((None, 1.0)),
        }
    }

    /// Whether kinds of layers have rotations of their own.
    fn by_kind(&self) -> bool {
        self.class().is_some_and(|c| c.rotates_by_kind())
    }

    /// The full name of a key of the map that describes the rotation of a kind of layer.
    fn rope_key(&self, kind: &str, key: &str) -> String {
        match (self.meta().map("rope_scaling").ok().flatten(), self.by_kind()) {
            (Some(_), _) => format!("rope_scaling.{key}"),
            (None, true) if kind.is_empty() => format!("rope_parameters.full_attention.{key}"),
            (None, true) => format!("rope_parameters.{kind}.{key}"),
            (None, false) => format!("rope_parameters.{key}"),
        }
    }

    /// The map of config.json that describes the rotation of a kind of layer.
    pub fn rope_map(&self, kind: &str) -> Result<Meta, ModelError> {
        if self.is_gguf() {
            return Ok(Meta::new());
        }
        let (params, class) = (self.meta(), self.class());
        let (scaling, whole) = (params.map("rope_scaling")?, params.map("rope_parameters")?);
        let default = |kind| class.map(|c| c.stretch(kind)).unwrap_or_default();
        if !self.by_kind() {
            let map = scaling.or(whole).cloned().unwrap_or_else(|| default(kind));
            let nested = map.iter().find(|(_, v)| matches!(v, MetaValue::Map(_)));
            return match nested {
                Some((at, map)) => {
                    Err(ModelError::unsupported(&self.rope_key(kind, at), shown(map)))
                }
                None => Ok(map),
            };
        }
        let kind = if kind.is_empty() { "full_attention" } else { kind };
        let mut map = match whole {
            None => default(kind),
            Some(whole) => {
                let flat = whole.iter().find(|(_, v)| !matches!(v, MetaValue::Map(_)));
                if let Some((at, value)) = flat.filter(|(_, v)| **v != MetaValue::Null) {
                    let key = format!("rope_parameters.{at}");
                    return Err(ModelError::unsupported(&key, shown(value)));
                }
                match whole.get(kind) {
                    Some(MetaValue::Map(map)) => (**map).clone(),
                    _ => Meta::new(),
                }
            }
        };
        let everywhere = class.is_some_and(|c| c.name == "modernbert");
        if let Some(name) =
            scaling.filter(|s| s.get("rope_type").is_none()).and_then(|s| s.get("type"))
        {
            // (Such classes have a `rope_type` already, which counts there.)
            return Err(ModelError::unsupported("rope_scaling.type", shown(name)));
        }
        for (key, value) in scaling.into_iter().flat_map(|s| s.iter()) {
            if kind == "full_attention" || everywhere {
                map.insert(key.to_owned(), value.clone());
            }
        }
        Ok(map)
    }

    /// A number of the rotary embedding, beside those that every model has.
    pub fn rope_number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        self.rope_real(&self.rope_map("")?, "", key)
    }

    /// A number of the map of a kind of layer.
    fn rope_real(&self, map: &Meta, kind: &str, key: &str) -> Result<Option<f64>, ModelError> {
        let real = |value| ranges::real(&self.rope_key(kind, key), key, value);
        Ok(map.get(key).map(real).transpose()?)
    }

    /// Rotary base; `kind` selects the entry of configs that keep one per layer type.
    pub fn theta(&self, kind: &str) -> Result<f64, ModelError> {
        if self.is_gguf() {
            let base = |key: &str| self.meta().opt_f64(&self.own("", key));
            let theta = base("rope.freq_base")?.or(base("rope.global.freq_base")?);
            return Ok(theta.unwrap_or(10_000.0));
        }
        let kind = if kind.is_empty() && self.by_kind() { "full_attention" } else { kind };
        let inside = self.rope_real(&self.rope_map(kind)?, kind, "rope_theta")?;
        let reads = |key: &str| self.class().is_some_and(|c| c.reads(key));
        let local = kind == "sliding_attention";
        let key = match local {
            true => ["local_rope_theta", "rope_local_base_freq"].into_iter().find(|k| reads(k)),
            false => ["global_rope_theta", "rotary_emb_base"].into_iter().find(|k| reads(k)),
        };
        let top = self.meta().opt_f64(key.unwrap_or("rope_theta"))?;
        let usual = self.class().and_then(|c| c.theta(kind));
        if let (None, Some(top), Some(usual), true, None) = (inside, top, usual, local, key)
            && top != usual
        {
            // (transformers takes it for full layers only, the models' own code for all.)
            return Err(ModelError::unsupported("rope_theta", format!("{top} beside windows")));
        }
        Ok(inside.or(top).or(usual).unwrap_or(10_000.0))
    }

    /// How rotary embeddings are stretched.
    pub fn rope_scaling(&self, kind: &str) -> Result<RopeScaling, ModelError> {
        if self.is_gguf() { self.gguf_rope_scaling() } else { self.hf_rope_scaling(kind) }
    }

    /// Up to where the short factors of a rotation hold, if it has others behind.
    pub fn short_context(&self, scaling: &RopeScaling) -> Result<Option<u32>, ModelError> {
        let short = match scaling {
            RopeScaling::Factors { .. } => true,
            RopeScaling::Tensor { .. } => {
                self.checkpoint().tensor("rope_factors_short.weight").is_some()
            }
            _ => false,
        };
        match (short, self.is_gguf()) {
            (false, _) => Ok(None),
            (true, true) => {
                let key = self.own("", "rope.scaling.original_context_length");
                Ok(self.meta().opt_u32(&key)?)
            }
            (true, false) => Ok(Some(self.original_context(&self.rope_map("")?, "")? as u32)),
        }
    }

    fn gguf_rope_scaling(&self) -> Result<RopeScaling, ModelError> {
        let key = |k: &str| self.own("", &format!("rope.scaling.{k}"));
        let number = |k: &str| self.meta().opt_f64(&key(k));
        let name = self.meta().opt_str(&key("type"))?;
        let factor =
            number("factor")?.or(self.meta().opt_f64(&self.own("", "rope.scale_linear"))?);
        let factor = factor.filter(|f| *f != 0.0).unwrap_or(1.0);
        let magnitude = number("attn_factor")?.unwrap_or(1.0) as f32;
        for tensor in ["rope_freqs.weight", "rope_factors_short.weight"] {
            if self.checkpoint().tensor(tensor).is_none() {
                continue;
            }
            let stretched = factor != 1.0 && !matches!(name, Some("none" | "longrope"));
            return match stretched {
                true => Err(ModelError::unsupported(&key("factor"), format!("{factor} twice"))),
                false => Ok(RopeScaling::Tensor { magnitude }),
            };
        }
        Ok(match name {
            _ if name != Some("yarn") && magnitude != 1.0 => {
                return Err(ModelError::unsupported(&key("attn_factor"), magnitude));
            }
            // What has no type is linear in llama.cpp.
            None | Some("linear") if factor != 1.0 => RopeScaling::Linear { factor },
            None | Some("none" | "linear") => RopeScaling::None,
            Some("yarn") => return self.gguf_yarn(factor, magnitude),
            Some(other) => return Err(ModelError::unsupported(&key("type"), other)),
        })
    }

    /// YaRN as llama.cpp computes it: one factor of the magnitude by the stretching, divided by
    /// another with `yarn_log_multiplier`, times `attn_factor`.
    fn gguf_yarn(&self, factor: f64, magnitude: f32) -> Result<RopeScaling, ModelError> {
        let key = |k: &str| self.own("", &format!("rope.scaling.{k}"));
        let number = |k: &str| self.meta().opt_f64(&key(k));
        let original = match number("original_context_length")? {
            Some(original) => original,
            None => f64::from(self.u32(CONTEXT)?),
        };
        if let Some(other) = number("yarn_ext_factor")?.filter(|x| *x != 1.0 && *x >= 0.0) {
            return Err(ModelError::unsupported(&key("yarn_ext_factor"), other));
        }
        let all = number("yarn_log_multiplier")?.unwrap_or(0.0);
        let usual = yarn_magnitude(factor, 1.0);
        // Converters write the usual one only.
        if let Some(other) = number("yarn_attn_factor")?
            && (other - usual).abs() > 1e-4
            && other != 1.0
        {
            return Err(ModelError::unsupported(&key("yarn_attn_factor"), other));
        }
        Ok(RopeScaling::Yarn {
            factor,
            beta_fast: number("yarn_beta_fast")?.unwrap_or(32.0),
            beta_slow: number("yarn_beta_slow")?.unwrap_or(1.0),
            original,
            magnitude: magnitude * (usual / yarn_magnitude(factor, all)) as f32,
            truncate: true,
        })
    }

    /// The way a rotation is stretched, and the map that says so, of which every key is known.
    fn rope_type(&self, kind: &str) -> Result<(Meta, String), ModelError> {
        let map = self.rope_map(kind)?;
        let name = match map.opt_str("rope_type")? {
            Some(name) => name,
            None => map.opt_str("type")?.unwrap_or("default"),
        };
        let phi3 = self.class().is_some_and(|c| c.name == "phi3");
        let name = match name {
            "su" | "yarn" if phi3 => "longrope",
            // (Positions of three axes do not stretch it.)
            "mrope" => "default",
            "default" | "longrope" => name,
            other if phi3 => {
                return Err(ModelError::unsupported(&self.rope_key(kind, "rope_type"), other));
            }
            name => name,
        };
        let Some((_, own)) = TYPES.iter().find(|(n, _)| *n == name) else {
            return Err(ModelError::unsupported(&self.rope_key(kind, "rope_type"), name));
        };
        let grows = self.class().is_some_and(|c| c.name == "ministral3");
        for (key, value) in map.iter() {
            if (key, value) == ("rope_theta", &MetaValue::Null) {
                return Err(ModelError::unsupported(&self.rope_key(kind, key), "null"));
            }
            let read = ALWAYS.contains(&key)
                || own.contains(&key)
                || (grows && key == "llama_4_scaling_beta");
            let neutral = matches!(shown(value).as_str(), "null" | "1" | "false");
            if !read && !neutral {
                let found = format!("{} with rope_type '{name}'", shown(value));
                return Err(ModelError::unsupported(&self.rope_key(kind, key), found));
            }
        }
        let name = name.to_owned();
        Ok((map, name))
    }

    fn hf_rope_scaling(&self, kind: &str) -> Result<RopeScaling, ModelError> {
        let (map, name) = self.rope_type(kind)?;
        let number = |key: &str| self.rope_real(&map, kind, key);
        let needed = |key: &str| -> Result<f64, ModelError> {
            number(key)?.ok_or_else(|| MetaError::Missing { key: self.rope_key(kind, key) }.into())
        };
        match name.as_str() {
            // Up to the model's context, where it ends here, `dynamic` is no stretching.
            "default" => Ok(RopeScaling::None),
            "dynamic" => needed("factor").map(|_| RopeScaling::None),
            "linear" => Ok(RopeScaling::Linear { factor: needed("factor")? }),
            "llama3" => Ok(RopeScaling::Llama3 {
                factor: needed("factor")?,
                low: needed("low_freq_factor")?,
                high: needed("high_freq_factor")?,
                original: self.original_context(&map, kind)?,
            }),
            "proportional" => {
                if let Some(factor) = number("factor")?.filter(|f| *f != 1.0) {
                    return Err(ModelError::unsupported(&self.rope_key(kind, "factor"), factor));
                }
                let part = number("partial_rotary_factor")?.unwrap_or(1.0);
                Ok(RopeScaling::Proportional { part })
            }
            // (A factor of null is the ratio of contexts, none at all is an error.)
            "yarn" if !map.iter().any(|(key, _)| key == "factor") => {
                needed("factor").map(|_| RopeScaling::None)
            }
            "yarn" => self.yarn(&map, kind),
            _ => self.longrope(&map, kind),
        }
    }

    /// The context a rotation was trained for before it was stretched.
    fn original_context(&self, map: &Meta, kind: &str) -> Result<f64, ModelError> {
        const KEY: &str = "original_max_position_embeddings";
        let (top, inside) = (self.meta().opt_f64(KEY)?, self.rope_real(map, kind, KEY)?);
        match if self.by_kind() { inside } else { top.or(inside) } {
            Some(original) => Ok(original),
            None => Ok(f64::from(self.u32(CONTEXT)?)),
        }
    }

    fn yarn(&self, map: &Meta, kind: &str) -> Result<RopeScaling, ModelError> {
        let original = self.original_context(map, kind)?;
        let number = |key: &str| self.rope_real(map, kind, key);
        let factor = match number("factor")? {
            Some(factor) => factor,
            None => f64::from(self.u32(CONTEXT)?) / original,
        };
        let given = |key: &str| number(key).map(|x| x.filter(|x| *x != 0.0));
        let magnitude = match number("attention_factor")? {
            Some(a) => a,
            None => match (given("mscale")?, given("mscale_all_dim")?) {
                (Some(m), Some(all)) => yarn_magnitude(factor, m) / yarn_magnitude(factor, all),
                _ => yarn_magnitude(factor, 1.0),
            },
        };
        Ok(RopeScaling::Yarn {
            factor,
            beta_fast: given("beta_fast")?.unwrap_or(32.0),
            beta_slow: given("beta_slow")?.unwrap_or(1.0),
            original,
            magnitude: magnitude as f32,
            truncate: self.truncate(map)?,
        })
    }

    /// Whether YaRN's bounds are rounded. (Where kinds of layers have maps of their own,
    /// transformers does not look into them for it.)
    fn truncate(&self, map: &Meta) -> Result<bool, ModelError> {
        match map.opt_bool("truncate")? {
            Some(false) if self.by_kind() => {
                let key = self.rope_key("full_attention", "truncate");
                Err(ModelError::unsupported(&key, "false, of a kind of layer"))
            }
            truncate => Ok(truncate.unwrap_or(true)),
        }
    }

    fn longrope(&self, map: &Meta, kind: &str) -> Result<RopeScaling, ModelError> {
        let original = self.original_context(map, kind)?;
        let len = |key: &str| map.opt_list(key).map(|l| l.map_or(0, <[MetaValue]>::len));
        if len("long_factor")? != len("short_factor")? {
            let found = format!("{} numbers, {} short", len("long_factor")?, len("short_factor")?);
            return Err(ModelError::unsupported(&self.rope_key(kind, "long_factor"), found));
        }
        // Short factors hold up to the original context; sequences beyond it would need the long
        // ones for every position, so the context limit is the original one.
        let divisors = |key: &str| -> Result<Vec<f64>, MetaError> {
            let list = map.opt_list(key)?.unwrap_or_default().iter();
            list.map(|x| ranges::real(&self.rope_key(kind, key), key, x)).collect()
        };
        divisors("long_factor")?;
        let factors = divisors("short_factor")?;
        let ratio = match self.rope_real(map, kind, "factor")? {
            Some(ratio) => ratio,
            None => f64::from(self.u32(CONTEXT)?) / original,
        };
        let magnitude = match self.rope_real(map, kind, "attention_factor")? {
            Some(a) => a,
            None if ratio <= 1.0 => 1.0,
            None => (1.0 + ratio.ln() / original.ln()).sqrt(),
        };
        Ok(RopeScaling::Factors { factors, magnitude: magnitude as f32 })
    }
}

/// YaRN's `0.1 · mscale · ln(factor) + 1`.
pub fn yarn_magnitude(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}
