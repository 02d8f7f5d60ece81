//! `quantization_config` (and MLX's `quantization`) of config.json as a checked type.
//!
//! Every key is used, or known to change nothing at its value ([`keys`]), or refused by name with
//! what it asks: it might change what the numbers mean. False and null ask for nothing.

use std::path::Path;

use tokenmill_ir::{Meta, MetaValue};

use super::keys::{self, Rule, Table};
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
        let mut found = None;
        for name in PLACES {
            found = found.or(meta.get(name).map(|value| (name, value)));
        }
        let config = match found {
            None => return Ok(Quantization::None),
            Some((name, MetaValue::Map(config))) => Config { path, name, config },
            Some((name, _)) => {
                return Err(LoadError::unsupported(path, format!("{name} of this kind")));
            }
        };
        let Some(method) = config.text("quant_method").or(config.text("method")) else {
            let what = format!("{} without quant_method", config.name);
            return Err(LoadError::unsupported(path, what));
        };
        match method {
            "mxfp4" => config.check(keys::MXFP4).map(|()| Quantization::Mxfp4),
            "gptq" => config.gptq(),
            "awq" => config.check(keys::AWQ).map(|()| Quantization::Awq),
            "auto-round" | "intel/auto-round" => config.auto_round(),
            "fp8" | "fbgemm_fp8" => config.fp8(),
            "compressed-tensors" => config.compressed(),
            "bitsandbytes" => config.check(keys::BITSANDBYTES).map(|()| Quantization::Bitsandbytes),
            "modelopt" | "modelopt_fp4" => {
                config.check(keys::MODELOPT).map(|()| Quantization::ModelOpt)
            }
            "exl3" => config.check(keys::EXL3).map(|()| Quantization::Exl3),
            other => Err(LoadError::unsupported(path, format!("quantization method '{other}'"))),
        }
    }
}

/// Where a configuration may stand: models of several parts have it with the text part, and early
/// ones of compressed-tensors under a name of their own.
const PLACES: [&str; 3] =
    ["quantization_config", "text_config.quantization_config", "compression_config"];

/// A configuration and where it is from.
struct Config<'a> {
    path: &'a Path,
    name: &'static str,
    config: &'a Meta,
}

impl Config<'_> {
    fn gptq(&self) -> Result<Quantization, LoadError> {
        self.check(keys::GPTQ)?;
        let format = self.text("checkpoint_format").or(self.text("format"));
        let plus = u32::from(!format.is_some_and(|f| f.eq_ignore_ascii_case("gptq_v2")));
        Ok(Quantization::Gptq(self.of_gptq(plus)))
    }

    fn of_gptq(&self, plus: u32) -> Gptq {
        let size = self.config.opt_f64("group_size").ok().flatten().filter(|size| *size >= 1.0);
        Gptq { plus, group_size: size.map(|size| size as u64) }
    }

    /// AutoRound writes the tensors of GPTQ or AWQ and says which.
    fn auto_round(&self) -> Result<Quantization, LoadError> {
        self.check(keys::AUTO_ROUND)?;
        let (key, format) = match (self.text("packing_format"), self.text("backend")) {
            (Some(format), _) => ("packing_format", format),
            // Early versions named the kernel only.
            (None, Some(backend)) => ("backend", backend),
            (None, None) => ("packing_format", "auto_round:auto_gptq"),
        };
        match format.strip_prefix("auto_round:").unwrap_or(format) {
            // Zero points as they are.
            "auto_round" | "gptqmodel" => Ok(Quantization::Gptq(self.of_gptq(0))),
            // Less one.
            "auto" | "auto_gptq" | "gptq" => Ok(Quantization::Gptq(self.of_gptq(1))),
            kernel if key == "backend" && kernel.starts_with("gptq:") => {
                Ok(Quantization::Gptq(self.of_gptq(1)))
            }
            "auto_awq" | "awq" => match self.config.get("bits").map(MetaValue::as_u32) {
                None | Some(Some(4)) => Ok(Quantization::Awq),
                _ => Err(self.refuse("bits")),
            },
            _ => Err(self.refuse(key)),
        }
    }

    fn fp8(&self) -> Result<Quantization, LoadError> {
        self.check(keys::FP8)?;
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
        self.check(keys::COMPRESSED)?;
        if let Some(MetaValue::Map(groups)) = self.config.get("config_groups") {
            for (group, value) in groups.iter() {
                let MetaValue::Map(config) = value else { continue };
                let name = format!("config_groups.{group}");
                check(self.path, &format!("{}.{name}", self.name), config, &[keys::GROUP])?;
            }
        }
        match self.config.get("sparsity_config.format") {
            Some(format) if format.as_str() != Some("dense") => Err(self.refuse("sparsity_config")),
            _ => Ok(Quantization::CompressedTensors),
        }
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.config.get(key).and_then(MetaValue::as_str)
    }

    /// Refuses keys that are not known, and values that would change what the numbers mean.
    fn check(&self, table: Table) -> Result<(), LoadError> {
        check(self.path, self.name, self.config, &[table, keys::EVERYWHERE])
    }

    fn refuse(&self, key: &str) -> LoadError {
        refuse(self.path, self.name, key, self.config.get(key))
    }
}

/// Refuses what no table knows; the first that has a key says what it may be.
fn check(path: &Path, name: &str, config: &Meta, tables: &[Table]) -> Result<(), LoadError> {
    for (key, value) in config.iter().filter(|(_, value)| **value != MetaValue::Null) {
        let rule = tables.iter().copied().flatten().find(|(keys, _)| keys.contains(&key));
        match (rule, value) {
            (Some((_, rule)), value) if !rule.allows(value) => {
                return Err(refuse(path, name, key, Some(value)));
            }
            (Some((_, Rule::Modules(table))), MetaValue::Map(modules)) => {
                for (module, value) in modules.iter() {
                    let MetaValue::Map(own) = value else { continue };
                    let name = format!("{name}.{key}.{module}");
                    check(path, &name, own, &[table, keys::EVERYWHERE])?;
                }
            }
            (Some(_), _) | (None, MetaValue::Bool(false)) => {}
            (None, value) => return Err(refuse(path, name, key, Some(value))),
        }
    }
    Ok(())
}

fn refuse(path: &Path, name: &str, key: &str, value: Option<&MetaValue>) -> LoadError {
    let value = match value {
        Some(MetaValue::Bool(value)) => format!(" = {value}"),
        Some(MetaValue::Int(value)) => format!(" = {value}"),
        Some(MetaValue::Float(value)) => format!(" = {value}"),
        Some(MetaValue::Str(value)) => format!(" = {value:?}"),
        _ => String::new(),
    };
    LoadError::unsupported(path, format!("{name}.{key}{value}"))
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
        let own = matches!(value, MetaValue::Map(_) | MetaValue::Bool(_) | MetaValue::Null);
        if !known.contains(&key) && !own {
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
                r#"{"quantization_config": {"method": "gptq", "quant_method": null, "bits": 4,
                    "format": "GPTQ_V2", "checkpoint_format": null, "rotation": null}}"#,
                gptq(0, None),
            ),
            (
                r#"{"text_config": {"quantization_config": {"quant_method": "mxfp4",
                    "modules_to_not_convert": ["lm_head"], "dequantize": false}}}"#,
                Quantization::Mxfp4,
            ),
            (
                r#"{"compression_config": {"quant_method": "compressed-tensors"}}"#,
                Quantization::CompressedTensors,
            ),
            (
                r#"{"quantization": {"group_size": 64, "bits": 4, "lm_head": false, "x": null},
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

    /// What tools write today.
    #[test]
    fn keys_that_change_nothing_are_read() {
        let auto_round = r#""bits": 4, "group_size": 128, "sym": true, "data_type": "int",
            "iters": 200, "nsamples": 128, "seqlen": 2048, "low_gpu_mem_usage": true,
            "autoround_version": "0.12.3", "damp_percent": 0.01, "desc_act": false,
            "super_bits": null, "act_bits": 16, "extra_config": {"lm_head": {"bits": 16,
            "data_type": "float"}, "model.layers.0.mlp": {"bits": 8, "group_size": 32}}"#;
        let gptq_of = |plus| Quantization::Gptq(Gptq { plus, group_size: Some(128) });
        for (method, packing, expect) in [
            ("gptq", "", gptq_of(1)),
            ("awq", r#""version": "gemm", "zero_point": true,"#, Quantization::Awq),
            ("auto-round", "", gptq_of(1)),
            ("auto-round", r#""packing_format": "auto_round:auto_gptq","#, gptq_of(1)),
            ("auto-round", r#""packing_format": "auto_round:gptqmodel","#, gptq_of(0)),
            ("auto-round", r#""packing_format": "auto_round","#, gptq_of(0)),
            ("auto-round", r#""packing_format": "auto_round:auto_awq","#, Quantization::Awq),
            ("intel/auto-round", r#""backend": "auto_round:gptq:exllamav2","#, gptq_of(1)),
        ] {
            let json = format!(
                r#"{{"quantization_config": {{"quant_method": "{method}", {packing} {auto_round}}}}}"#
            );
            assert_eq!(parse(&json).unwrap(), expect, "{json}");
        }
        for (method, rest) in [
            (
                "fp8",
                r#""activation_scheme": "dynamic", "weight_block_size": null, "dequantize": false,
                "modules_to_convert": null, "scale_fmt": "ue8m0", "expert_dtype": "fp8",
                "fmt": "e4m3", "modules_to_not_convert": ["lm_head"], "activation_scale_ub": 1200"#,
            ),
            (
                "fp8",
                r#""activation_scheme": "static", "kv_cache_dtype": "auto", "use_deep_gemm": false,
                "what_nobody_knows": false, "nor_this": null"#,
            ),
            (
                "gptq",
                r#""bits": 4, "lm_head": false, "dynamic": {"-:.*gate.*": {}}, "pack_dtype":
                "int32", "meta": {"quantizer": ["gptqmodel:4.0.0"], "damp_percent": 0.05},
                "checkpoint_format": "gptq", "adapter": null, "act_group_aware": true,
                "is_marlin_format": false, "hyb_act": false, "failsafe": {"strategy": "rtn"},
                "use_triton": true, "block_list": ["model.layers"], "vram_strategy": "balanced",
                "enable_deterministic_algorithms": true"#,
            ),
            (
                "awq",
                r#""bits": 4, "backend": "autoawq", "do_fuse": false, "version": "GEMM",
                "exllama_config": null, "modules_to_not_convert": null, "format": "gemm",
                "tokenizer": null, "damp_percent": 0.1, "act_group_aware": true"#,
            ),
            (
                "compressed-tensors",
                r#""format": "pack-quantized", "quantization_status": "compressed", "version":
                "0.12.2", "global_compression_ratio": null, "kv_cache_scheme": null, "ignore": [],
                "sparsity_config": {}, "transform_config": {}, "config_groups": {"group_0":
                {"format": "pack-quantized", "targets": ["Linear"], "input_activations": null,
                "output_activations": null, "weights": {"num_bits": 4, "actorder": null}}}"#,
            ),
            (
                "bitsandbytes",
                r#""_load_in_4bit": true, "_load_in_8bit": false, "load_in_4bit": true,
                "load_in_8bit": false, "bnb_4bit_compute_dtype": "bfloat16",
                "bnb_4bit_quant_storage": "uint8", "bnb_4bit_quant_type": "nf4",
                "bnb_4bit_use_double_quant": true, "llm_int8_enable_fp32_cpu_offload": false,
                "llm_int8_has_fp16_weight": false, "llm_int8_skip_modules": null,
                "llm_int8_threshold": 6.0"#,
            ),
            (
                "modelopt",
                r#""quant_algo": "NVFP4", "kv_cache_scheme": {"num_bits": 8}, "group_size": 16,
                "ignore": ["lm_head"], "producer": {"name": "modelopt", "version": "0.40"}"#,
            ),
        ] {
            let json =
                format!(r#"{{"quantization_config": {{"quant_method": "{method}", {rest}}}}}"#);
            assert!(parse(&json).is_ok(), "{json}: {:?}", parse(&json));
        }
    }

    #[test]
    fn what_is_not_understood_is_refused_by_name() {
        for (method, rest, expect) in [
            ("quip", "", "quantization method 'quip' is not supported"),
            ("gptq", r#", "bits": 4, "rotation": "h""#, "quantization_config.rotation"),
            ("gptq", r#", "checkpoint_format": "marlin""#, "checkpoint_format = \"marlin\""),
            ("gptq", r#", "is_marlin_format": true"#, "quantization_config.is_marlin_format"),
            ("awq", r#", "version": "gemv""#, "quantization_config.version"),
            ("awq", r#", "bits": 8"#, "quantization_config.bits = 8"),
            ("awq", r#", "backend": "llm-awq""#, "quantization_config.backend = \"llm-awq\""),
            ("fp8", r#", "packed": true"#, "quantization_config.packed = true"),
            ("fp8", r#", "packed": 1"#, "quantization_config.packed = 1"),
            ("fp8", r#", "dequantize": true"#, "quantization_config.dequantize = true"),
            ("fp8", r#", "expert_dtype": "fp4""#, "quantization_config.expert_dtype = \"fp4\""),
            ("fp8", r#", "weight_block_size": [128]"#, "quantization_config.weight_block_size"),
            ("mxfp4", r#", "rounding": "up""#, "quantization_config.rounding = \"up\""),
            ("gptq", r#", "data_type": "mx_fp""#, "quantization_config.data_type = \"mx_fp\""),
            ("gptq", r#", "adapter": {"name": "lora"}"#, "quantization_config.adapter"),
            ("auto-round", r#", "super_bits": 6"#, "quantization_config.super_bits = 6"),
            (
                "auto-round",
                r#", "packing_format": "auto_round:fp8""#,
                "quantization_config.packing_format = \"auto_round:fp8\"",
            ),
            (
                "auto-round",
                r#", "packing_format": "auto_round:auto_awq", "bits": 8"#,
                "quantization_config.bits = 8",
            ),
            (
                "auto-round",
                r#", "extra_config": {"model.layers.1": {"data_type": "nv_fp"}}"#,
                "quantization_config.extra_config.model.layers.1.data_type = \"nv_fp\"",
            ),
            (
                "compressed-tensors",
                r#", "config_groups": {"group_1": {"format": "marlin-24"}}"#,
                "quantization_config.config_groups.group_1.format = \"marlin-24\"",
            ),
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
