//! Reading `vision_config`: what its configuration class in transformers knows and defaults to, every
//! key read, neutral or refused, as for language models.

use tokenmill_ir::{Checkpoint, Container, Mask, Meta, MetaError, MetaValue, RopePairing};

use super::{Patch, attention, tower};
use crate::classes::Class;
use crate::error::ModelError;
use crate::hyper::{HIDDEN, Hyper, act};
use crate::neutral;
use crate::params::Params;
use crate::spec::{Axes, Ffn, ModelSpec, Norm, RopeScaling, RopeSpec};

/// Where a config.json has it.
const VISION: &str = "vision_config";

/// The encoder's part of a checkpoint's metadata.
pub(super) fn config(checkpoint: &Checkpoint) -> Result<Option<&Meta>, ModelError> {
    match (checkpoint.container, checkpoint.meta.get(VISION)) {
        (Container::Gguf, _) | (_, None) => Ok(None),
        (_, Some(MetaValue::Map(config))) => Ok(Some(config)),
        (_, Some(other)) => {
            let (key, found) = (VISION.to_owned(), other.told());
            Err(MetaError::Type { key, expected: "a map", found }.into())
        }
    }
}

/// An error about a key, where `place` says which.
fn placed(error: ModelError, place: impl Fn(String) -> String) -> ModelError {
    match error {
        ModelError::Unsupported { key, value } => {
            ModelError::Unsupported { key: place(key), value }
        }
        ModelError::Meta(
            ref e @ (MetaError::Missing { ref key }
            | MetaError::Type { ref key, .. }
            | MetaError::Bounds { ref key, .. }
            | MetaError::Range { ref key, .. }),
        ) => e.clone().of_key(&place(key.clone())).into(),
        other => other,
    }
}

/// The keys of an encoder, and of the model around it.
pub(super) struct Keys<'a> {
    checkpoint: &'a Checkpoint,
    params: Params,
    class: Class,
}

impl<'a> Keys<'a> {
    /// A reader of an encoder's configuration.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for a class that is not recorded, or two values of one key.
    pub(super) fn of(
        checkpoint: &'a Checkpoint,
        config: &Meta,
        name: &str,
    ) -> Result<Self, ModelError> {
        let Some(class) = Class::of(&format!("{name}.vision")) else {
            return Err(ModelError::unsupported("vision_config", format!("of '{name}'")));
        };
        let params = Params::of_map(config, Container::Hf, String::new(), Some(&class));
        let params = params.map_err(|e| placed(e, |key| format!("{VISION}.{key}")))?;
        Ok(Self { checkpoint, params, class })
    }

    /// An error about a key, with its place in the file where it is the encoder's.
    pub(super) fn placed(&self, error: ModelError) -> ModelError {
        placed(error, |key| {
            let own = self.params.is_written(&key)
                || self.class.knows(&key)
                || self.params.foreign().get(&key).is_some();
            if own { format!("{VISION}.{key}") } else { key }
        })
    }

    /// Refuses what nobody has read although it could matter.
    pub(super) fn check_all_read(&self) -> Result<(), ModelError> {
        self.params.note("model_type");
        neutral::check(&self.params, Some(&self.class), "")
    }

    /// The parameters, for keys that one family has.
    pub(super) fn params(&self) -> &Params {
        &self.params
    }

    /// A whole number, or the class's default.
    pub(super) fn u32(&self, key: &str) -> Result<u32, MetaError> {
        self.params.u32(key)
    }

    /// A whole number of the model around the encoder.
    pub(super) fn outer(&self, keys: &[&str]) -> Result<Option<u32>, MetaError> {
        for key in keys {
            if let Some(found) = self.checkpoint.meta.opt_u32(key)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// A number of the model around the encoder.
    pub(super) fn outer_f64(&self, key: &str) -> Result<Option<f64>, MetaError> {
        self.checkpoint.meta.opt_f64(key)
    }

    /// Patches along each side of what becomes one row, where a key says its inverse, a half if nothing.
    pub(super) fn merge(
        &self,
        ratio: Option<f64>,
        key: &str,
        side: u32,
    ) -> Result<u32, ModelError> {
        let merge = (1.0 / ratio.unwrap_or(0.5)).floor();
        let fits = (1.0..=16.0).contains(&merge) && side > 0 && side.is_multiple_of(merge as u32);
        match fits {
            true => Ok(merge as u32),
            false => {
                let found = format!("{ratio:?} for {side} × {side} patches");
                Err(ModelError::unsupported(key, found))
            }
        }
    }

    /// A text of the model around the encoder.
    pub(super) fn outer_str(&self, key: &str) -> Result<Option<&str>, MetaError> {
        self.checkpoint.meta.opt_str(key)
    }

    /// Refuses another value of a text of the model around the encoder.
    pub(super) fn outer_is(&self, key: &str, value: &str) -> Result<(), ModelError> {
        match self.outer_str(key)? {
            Some(other) if other != value => Err(ModelError::unsupported(key, other)),
            _ => Ok(()),
        }
    }

    /// Whether the file has a tensor whose name ends so.
    pub(super) fn has_tensor(&self, end: &str) -> bool {
        self.checkpoint.tensors.iter().any(|t| t.name.ends_with(end))
    }

    /// Refuses a projector that is said to have no biases and has them.
    pub(super) fn projector_bias(&self) -> Result<(), ModelError> {
        const KEY: &str = "multimodal_projector_bias";
        let said = self.checkpoint.meta.opt_bool(KEY)?;
        match said == Some(false) && self.has_tensor("multi_modal_projector.linear_1.bias") {
            true => Err(ModelError::unsupported(KEY, "false beside biases of the projector")),
            false => Ok(()),
        }
    }

    /// Refuses an encoder of another type.
    pub(super) fn is(&self, kind: &str) -> Result<(), ModelError> {
        const KEY: &str = "model_type";
        let found = match self.params.foreign().opt_str(KEY)? {
            Some(found) => Some(found),
            None => self.params.opt_str(KEY)?,
        };
        match found {
            Some(other) if other != kind => Err(ModelError::unsupported(KEY, other)),
            _ => Ok(()),
        }
    }

    /// How many layers of `all` are computed, of which the last is taken; counted from behind where
    /// the file does so, `usual` where it says nothing.
    pub(super) fn feature_layer(&self, all: u32, usual: i64) -> Result<u32, ModelError> {
        const KEY: &str = "vision_feature_layer";
        let layer = match self.checkpoint.meta.get(KEY) {
            None => usual,
            Some(MetaValue::Int(layer)) => *layer,
            Some(other) => return Err(ModelError::unsupported(KEY, other.shown())),
        };
        // (0 is what the first layer is given.)
        let taken = if layer < 0 { i64::from(all) + 1 + layer } else { layer };
        let taken = u32::try_from(taken).ok().filter(|n| (1..=all).contains(n));
        taken.ok_or_else(|| ModelError::unsupported(KEY, format!("{layer} of {all} layers")))
    }

    /// The base of the encoder's rotation.
    pub(super) fn theta(&self) -> Result<f64, ModelError> {
        const MAP: &str = "rope_parameters";
        let mut inside = None;
        for (key, value) in self.params.map(MAP)?.into_iter().flat_map(Meta::iter) {
            let known = match key {
                "rope_theta" => {
                    inside = Some(self.params.real(key, value)?);
                    true
                }
                // (`axial` is what a newer transformers calls rotations by rows and columns.)
                "rope_type" | "type" => ["default", "axial"].contains(&value.shown().as_str()),
                _ => ["null", "1"].contains(&value.shown().as_str()),
            };
            if !known {
                return Err(ModelError::unsupported(&format!("{MAP}.{key}"), value.shown()));
            }
        }
        Ok(inside
            .or(self.params.opt_f64("rope_theta")?)
            .or(self.class.theta(""))
            .unwrap_or(10_000.0))
    }

    /// The rotation of a tower by rows and columns.
    pub(super) fn by_halves(&self, head_dim: u32) -> Result<RopeSpec, ModelError> {
        Ok(RopeSpec { theta: self.theta()?, ..by_halves(head_dim) })
    }

    /// The whole file.
    pub(super) fn checkpoint(&self) -> &'a Checkpoint {
        self.checkpoint
    }

    /// A list of whole numbers.
    pub(super) fn list(&self, key: &str) -> Result<Vec<u32>, MetaError> {
        let list = self.params.opt_list(key)?.unwrap_or_default();
        list.iter().map(|value| self.params.whole(key, value)).collect()
    }

    /// The side of a square, a number or two that are equal.
    pub(super) fn side(&self, key: &str) -> Result<u32, ModelError> {
        match self.params.get(key) {
            Some(MetaValue::List(sides)) => match &sides[..] {
                [one, other] if one == other => Ok(self.params.whole(key, one)?),
                _ => Err(ModelError::unsupported(key, "no square")),
            },
            _ => Ok(self.u32(key)?),
        }
    }

    /// Layers of the tower, by their numbers.
    pub(super) fn layers_of(&self, key: &str, count: u32) -> Result<Vec<u32>, ModelError> {
        let list = self.list(key)?;
        let mut seen = std::collections::BTreeSet::new();
        match list.iter().find(|l| **l >= count || !seen.insert(**l)) {
            None => Ok(list),
            Some(l) => Err(ModelError::unsupported(key, format!("{l} of {count} layers"))),
        }
    }

    /// Width, heads, and that these divide it; `four` where a head's columns are turned by halves.
    pub(super) fn widths(
        &self,
        hidden: &str,
        heads: &str,
        four: bool,
    ) -> Result<(u32, u32), ModelError> {
        let (columns, count) = (self.u32(hidden)?, self.u32(heads)?);
        let of = if four { 4 * u64::from(count) } else { count.into() };
        match u64::from(columns).is_multiple_of(of) {
            true => Ok((columns, count)),
            false => Err(ModelError::unsupported(
                heads,
                format!("{count} heads of {hidden} = {columns}"),
            )),
        }
    }

    /// A patch of an encoder of images and films.
    pub(super) fn patch(&self) -> Result<Patch, ModelError> {
        Ok(Patch {
            channels: self.u32("in_channels")?,
            frames: self.u32("temporal_patch_size")?,
            size: self.u32("patch_size")?,
            pixels: false,
        })
    }

    /// A feed-forward part of two products, by the name of its activation.
    pub(super) fn plain(&self, width: u32) -> Result<Ffn, ModelError> {
        const KEY: &str = "hidden_act";
        match self.params.opt_str(KEY)?.unwrap_or_default() {
            "quick_gelu" => Ok(Ffn::Swish { width, beta: 1.702 }),
            name => Ok(Ffn::Plain { width, act: act(KEY, name)? }),
        }
    }

    /// A tower of `count` layers over images of one size, whose patches all see each other and have a
    /// learned place each (SigLIP, CLIP): its layers, their norm, a patch, and how many are along a side.
    pub(super) fn square(&self, count: u32) -> Result<(ModelSpec, Norm, Patch, u32), ModelError> {
        let (hidden, heads) = self.widths("hidden_size", "num_attention_heads", false)?;
        let norm = Norm::layer(self.params.f32("layer_norm_eps")?);
        let ffn = self.plain(self.u32("intermediate_size")?)?;
        let layers = |_| attention(hidden, heads, None, Mask::None);
        let size = self.u32("patch_size")?;
        let patch = Patch { channels: self.u32("num_channels")?, frames: 1, size, pixels: false };
        Ok((
            tower((hidden, count), norm, layers, &ffn),
            norm,
            patch,
            self.u32("image_size")? / size,
        ))
    }

    /// The language model's width.
    pub(super) fn text_hidden(&self) -> Result<u32, ModelError> {
        Ok(Hyper::new(self.checkpoint)?.u32(HIDDEN)?)
    }

    /// Which axis turns each pair of the language model, in runs or by turns.
    pub(super) fn axes(&self, usual: Option<[u32; 3]>) -> Result<Axes, ModelError> {
        const KEY: &str = "mrope_section";
        let map = Hyper::new(self.checkpoint)?.rope_map("")?;
        let sections = match (map.opt_list(KEY)?, usual) {
            (Some(list), _) => list.iter().map(|n| n.as_u32().unwrap_or(u32::MAX)).collect(),
            (None, Some(usual)) => usual.to_vec(),
            (None, None) => return Err(MetaError::Missing { key: KEY.to_owned() }.into()),
        };
        let interleaved = map.opt_bool("mrope_interleaved")?;
        match (interleaved, usual.is_some()) {
            (None | Some(true), true) => Ok(Axes::Interleaved(sections)),
            (None | Some(false), false) => Ok(Axes::Sections(sections)),
            (Some(other), _) => Err(ModelError::unsupported("mrope_interleaved", other)),
        }
    }
}

/// The rotation of a tower by rows and columns.
pub(super) fn by_halves(head_dim: u32) -> RopeSpec {
    RopeSpec {
        dims: head_dim,
        theta: 10_000.0,
        pairing: RopePairing::Half,
        scaling: RopeScaling::None,
        axes: Axes::Halves,
    }
}
