//! `quantization_config` (and MLX's `quantization`) of config.json as a checked type.
//!
//! A key that is not known is refused by name: it might change what the numbers mean. Keys that
//! only say how the weights were found, or which modules are left alone, change nothing here.

use std::path::Path;

use tokenmill_ir::{Meta, MetaValue};

use crate::error::LoadError;

/// Which family of quantised tensors a checkpoint has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quantization {
    None,
    Mxfp4,
    Gptq(Gptq),
    Awq,
    /// Rows and columns of a block, where scales are of blocks.
    Fp8(Option<[u64; 2]>),
    CompressedTensors,
    Bitsandbytes,
    ModelOpt,
    Exl3,
    Mlx(Mlx),
}

/// GPTQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gptq {
    /// What is added to stored zero points.
    pub plus: u32,
    /// Columns of a group; `None`: all, or as the tensors say.
    pub group_size: Option<u64>,
}

/// MLX, for all modules or one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mlx {
    pub bits: u32,
    pub group_size: u64,
    pub mode: MlxMode,
}

/// What MLX's codes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MlxMode {
    Affine,
    Mxfp4,
    Mxfp8,
    Nvfp4,
}

/// Keys of every method that say how or for whom the weights were made.
const HISTORY: &[&str] = &[
    "quant_method",
    "modules_to_not_convert",
    "modules_in_block_to_quantize",
    "ignored_layers",
    "ignore",
    "lm_head",
    "meta",
    "version",
    "dataset",
    "tokenizer",
    "model_name_or_path",
    "model_file_base_name",
    "model_seqlen",
    "block_name_to_quantize",
    "module_name_preceding_first_block",
    "batch_size",
    "pad_token_id",
    "backend",
    "producer",
];
const GPTQ: &[&str] = &[
    "bits",
    "group_size",
    "sym",
    "desc_act",
    "act_group_aware",
    "static_groups",
    "true_sequential",
    "damp_percent",
    "damp_auto_increment",
    "mse",
    "dynamic",
    "checkpoint_format",
    "format",
    "pack_dtype",
    "is_marlin_format",
    "use_cuda_fp16",
    "use_exllama",
    "exllama_config",
    "disable_exllama",
    "max_input_length",
    "cache_block_outputs",
    "cache_examples_on_gpu",
    "hyb_act",
    "quantizer",
];
const AWQ: &[&str] = &[
    "bits",
    "group_size",
    "zero_point",
    "w_bit",
    "q_group_size",
    "do_fuse",
    "fuse_max_seq_len",
    "modules_to_fuse",
    "exllama_config",
];
const FP8: &[&str] =
    &["activation_scheme", "fmt", "weight_block_size", "activation_scale_ub", "kv_cache_scheme"];
const COMPRESSED: &[&str] = &[
    "format",
    "config_groups",
    "quantization_status",
    "global_compression_ratio",
    "kv_cache_scheme",
    "sparsity_config",
    "transform_config",
];
const MODELOPT: &[&str] = &[
    "quant_algo",
    "kv_cache_quant_algo",
    "kv_cache_scheme",
    "group_size",
    "exclude_modules",
    "config_groups",
    "has_zero_point",
    "pre_quant_scale",
];

const EXL3: &[&str] = &[
    "bits",
    "head_bits",
    "calibration",
    "codebook",
    "out_scales",
    "tensor_storage",
    "layer_bits",
    "method",
    "format",
    "checkpoint_format",
    "group_size",
    "desc_act",
];

impl Quantization {
    /// Reads config.json.
    ///
    /// # Errors
    /// [`LoadError::Unsupported`], naming the method, key or value.
    pub fn parse(path: &Path, meta: &Meta) -> Result<Quantization, LoadError> {
        // mlx-lm writes the same under both keys.
        if let Some(MetaValue::Map(config)) = meta.get("quantization") {
            return Ok(Quantization::Mlx(mlx_of(path, config, None)?));
        }
        let config = match meta.get("quantization_config") {
            None => return Ok(Quantization::None),
            Some(MetaValue::Map(config)) => Config { path, config },
            Some(_) => {
                return Err(LoadError::unsupported(path, "quantization_config of this kind"));
            }
        };
        let Some(method) = config.text("quant_method") else {
            let what = "quantization_config without quant_method";
            return Err(LoadError::unsupported(path, what));
        };
        match method {
            "mxfp4" => Ok(Quantization::Mxfp4),
            "gptq" => config.gptq(),
            "awq" => {
                config.check(AWQ)?;
                config.among("version", &["gemm", "GEMM"])?;
                Ok(Quantization::Awq)
            }
            "fp8" | "fbgemm_fp8" => config.fp8(),
            "compressed-tensors" => config.compressed(),
            "bitsandbytes" => {
                config.check_prefixed(&["load_in_", "_load_in_", "bnb_4bit_", "llm_int8_"])?;
                Ok(Quantization::Bitsandbytes)
            }
            "modelopt" | "modelopt_fp4" => {
                config.check(MODELOPT)?;
                config.among("quant_algo", &["NVFP4", "FP8", "MIXED_PRECISION"])?;
                config.falsy("pre_quant_scale")?;
                Ok(Quantization::ModelOpt)
            }
            "exl3" => {
                config.check(EXL3)?;
                config.among("format", &["exl3"])?;
                config.among("checkpoint_format", &["exl3"])?;
                config.among("codebook", &["3inst", "mcg", "mul1"])?;
                Ok(Quantization::Exl3)
            }
            other => Err(LoadError::unsupported(path, format!("quantization method '{other}'"))),
        }
    }
}

/// A configuration and where it is from.
struct Config<'a> {
    path: &'a Path,
    config: &'a Meta,
}

impl Config<'_> {
    fn gptq(&self) -> Result<Quantization, LoadError> {
        self.check(GPTQ)?;
        self.falsy("is_marlin_format")?;
        self.among("pack_dtype", &["int32"])?;
        let formats = ["gptq", "gptq_v2"];
        self.among("checkpoint_format", &formats)?;
        self.among("format", &formats)?;
        let format = self.text("checkpoint_format").or(self.text("format"));
        let size = self.config.opt_f64("group_size").ok().flatten().filter(|size| *size >= 1.0);
        Ok(Quantization::Gptq(Gptq {
            plus: u32::from(format != Some("gptq_v2")),
            group_size: size.map(|size| size as u64),
        }))
    }

    fn fp8(&self) -> Result<Quantization, LoadError> {
        self.check(FP8)?;
        let sides = |list: &[MetaValue]| match list {
            [rows, cols] => {
                let side = |v: &MetaValue| v.as_u32().filter(|&n| n > 0).map(u64::from);
                Some([side(rows)?, side(cols)?])
            }
            _ => None,
        };
        let block = match self.config.get("weight_block_size") {
            None => None,
            Some(MetaValue::List(list)) => match sides(list) {
                None => return Err(self.refuse("weight_block_size")),
                found => found,
            },
            Some(_) => return Err(self.refuse("weight_block_size")),
        };
        Ok(Quantization::Fp8(block))
    }

    fn compressed(&self) -> Result<Quantization, LoadError> {
        self.check(COMPRESSED)?;
        self.among(
            "format",
            &[
                "pack-quantized",
                "int-quantized",
                "float-quantized",
                "naive-quantized",
                "nvfp4-pack-quantized",
                "mxfp4-pack-quantized",
                "mixed-precision",
            ],
        )?;
        self.among("quantization_status", &["compressed"])?;
        let dense = match self.config.get("sparsity_config.format") {
            None => true,
            Some(format) => format.as_str() == Some("dense"),
        };
        if !dense {
            return Err(self.refuse("sparsity_config"));
        }
        self.falsy("transform_config")?;
        Ok(Quantization::CompressedTensors)
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.config.get(key).and_then(MetaValue::as_str)
    }

    /// Refuses keys that are neither history nor `known`.
    fn check(&self, known: &[&str]) -> Result<(), LoadError> {
        let unknown = |key: &&str| !HISTORY.contains(key) && !known.contains(key);
        match self.config.iter().map(|(key, _)| key).find(unknown) {
            Some(key) => Err(self.refuse(key)),
            None => Ok(()),
        }
    }

    /// Refuses keys that are neither history nor begin so.
    fn check_prefixed(&self, known: &[&str]) -> Result<(), LoadError> {
        let unknown =
            |key: &&str| !HISTORY.contains(key) && !known.iter().any(|k| key.starts_with(k));
        match self.config.iter().map(|(key, _)| key).find(unknown) {
            Some(key) => Err(self.refuse(key)),
            None => Ok(()),
        }
    }

    /// Refuses a text that is none of these; absent is fine.
    fn among(&self, key: &str, known: &[&str]) -> Result<(), LoadError> {
        match self.config.get(key) {
            Some(value) if !value.as_str().is_some_and(|text| known.contains(&text)) => {
                let what = format!("quantization_config.{key} {value:?}");
                Err(LoadError::unsupported(self.path, what))
            }
            _ => Ok(()),
        }
    }

    /// Refuses a value other than false, null or nothing.
    fn falsy(&self, key: &str) -> Result<(), LoadError> {
        match self.config.get(key) {
            None | Some(MetaValue::Bool(false)) => Ok(()),
            Some(MetaValue::Map(map)) if map.iter().next().is_none() => Ok(()),
            Some(_) => Err(self.refuse(key)),
        }
    }

    fn refuse(&self, key: &str) -> LoadError {
        LoadError::unsupported(self.path, format!("quantization_config.{key}"))
    }
}

/// MLX's parameters in a map; what is not said is taken from `whole`.
pub(super) fn mlx_of(path: &Path, config: &Meta, whole: Option<&Mlx>) -> Result<Mlx, LoadError> {
    let refuse = |what: String| LoadError::unsupported(path, format!("quantization.{what}"));
    let number = |key: &str, default: Option<u32>, allowed: &[u32]| {
        let value = config.opt_u32(key).ok().flatten().or(default);
        value.filter(|v| allowed.contains(v)).ok_or_else(|| refuse(format!("{key} {value:?}")))
    };
    let mode = match config.opt_str("mode") {
        Ok(None) => whole.map_or(MlxMode::Affine, |w| w.mode),
        Ok(Some("affine")) => MlxMode::Affine,
        Ok(Some("mxfp4")) => MlxMode::Mxfp4,
        Ok(Some("mxfp8")) => MlxMode::Mxfp8,
        Ok(Some("nvfp4")) => MlxMode::Nvfp4,
        other => return Err(refuse(format!("mode {other:?}"))),
    };
    let known = ["bits", "group_size", "mode", "quant_method"];
    for (key, value) in config.iter() {
        // Modules have maps or truth values of their own.
        if !known.contains(&key) && !matches!(value, MetaValue::Map(_) | MetaValue::Bool(_)) {
            return Err(refuse(key.to_owned()));
        }
    }
    let bits = number("bits", whole.map(|w| w.bits), &[2, 3, 4, 5, 6, 8])?;
    let group = number("group_size", whole.map(|w| w.group_size as u32), &[16, 32, 64, 128])?;
    Ok(Mlx { bits, group_size: group.into(), mode })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hf_config;

    fn parse(json: &str) -> Result<Quantization, LoadError> {
        let path = Path::new("config.json");
        Quantization::parse(path, &hf_config::parse(path, json.as_bytes())?)
    }

    #[test]
    fn methods_are_told_apart() {
        let gptq = |plus, group_size| Quantization::Gptq(Gptq { plus, group_size });
        let mlx = |bits, group_size, mode| Quantization::Mlx(Mlx { bits, group_size, mode });
        for (json, expect) in [
            ("{}", Quantization::None),
            (r#"{"quantization_config": null}"#, Quantization::None),
            (r#"{"quantization_config": {"quant_method": "mxfp4"}}"#, Quantization::Mxfp4),
            (
                r#"{"quantization_config": {"quant_method": "gptq", "group_size": 128}}"#,
                gptq(1, Some(128)),
            ),
            (
                r#"{"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": -1,
                    "checkpoint_format": "gptq_v2"}}"#,
                gptq(0, None),
            ),
            (
                r#"{"quantization_config": {"quant_method": "awq", "bits": 4, "version": "gemm"}}"#,
                Quantization::Awq,
            ),
            (
                r#"{"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128],
                    "activation_scheme": "dynamic", "fmt": "e4m3"}}"#,
                Quantization::Fp8(Some([128, 128])),
            ),
            (
                r#"{"quantization_config": {"quant_method": "compressed-tensors",
                    "format": "pack-quantized", "config_groups": {}, "sparsity_config": {}}}"#,
                Quantization::CompressedTensors,
            ),
            (
                r#"{"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true,
                    "bnb_4bit_quant_type": "nf4", "llm_int8_threshold": 6.0}}"#,
                Quantization::Bitsandbytes,
            ),
            (
                r#"{"quantization_config": {"quant_method": "exl3", "bits": 4.0, "head_bits": 6,
                    "version": "0.0.30", "codebook": "mul1", "calibration": {"rows": 128}}}"#,
                Quantization::Exl3,
            ),
            (
                r#"{"quantization": {"group_size": 64, "bits": 4, "lm_head": false},
                    "quantization_config": {"group_size": 64, "bits": 4}}"#,
                mlx(4, 64, MlxMode::Affine),
            ),
            (
                r#"{"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}}"#,
                mlx(4, 32, MlxMode::Mxfp4),
            ),
        ] {
            assert_eq!(parse(json).unwrap(), expect, "{json}");
        }
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        for (method, rest, expect) in [
            ("quip", "", "quantization method 'quip' is not supported"),
            ("gptq", r#", "bits": 4, "rotation": "h""#, "quantization_config.rotation"),
            ("gptq", r#", "checkpoint_format": "marlin""#, "checkpoint_format Str(\"marlin\")"),
            ("gptq", r#", "is_marlin_format": true"#, "quantization_config.is_marlin_format"),
            ("awq", r#", "version": "gemv""#, "quantization_config.version"),
            ("fp8", r#", "packed": 1"#, "quantization_config.packed"),
            ("compressed-tensors", r#", "format": "marlin-24""#, "quantization_config.format"),
            (
                "compressed-tensors",
                r#", "sparsity_config": {"format": "sparse-bitmask"}"#,
                "quantization_config.sparsity_config",
            ),
            (
                "compressed-tensors",
                r#", "transform_config": {"config_groups": 1}"#,
                "quantization_config.transform_config",
            ),
            ("bitsandbytes", r#", "outliers": 6"#, "quantization_config.outliers"),
            ("exl3", r#", "codebook": "tq3""#, "quantization_config.codebook"),
            ("exl3", r#", "rank_slices": 2"#, "quantization_config.rank_slices"),
            ("modelopt", r#", "quant_algo": "W4A8_AWQ""#, "quantization_config.quant_algo"),
        ] {
            let json =
                format!(r#"{{"quantization_config": {{"quant_method": "{method}"{rest}}}}}"#);
            let error = parse(&json).unwrap_err().to_string();
            assert!(error.contains(expect), "{json}: {error}");
        }
        for (json, expect) in [
            (r#"{"quantization_config": {"bits": 4}}"#, "without quant_method"),
            (r#"{"quantization": {"bits": 7, "group_size": 64}}"#, "quantization.bits Some(7)"),
            (r#"{"quantization": {"bits": 4, "group_size": 64, "mode": "fp6"}}"#, "fp6"),
            (r#"{"quantization": {"bits": 4, "group_size": 64, "skew": 3}}"#, "quantization.skew"),
        ] {
            let error = parse(json).unwrap_err().to_string();
            assert!(error.contains(expect), "{json}: {error}");
        }
    }
}
