//! The keys that tools write into a quantisation's configuration, and what each may say.
//!
//! Bits, groups, zero points and which modules are quantised are read from the tensors, and
//! activations and caches are encoded in ways of this program's own: keys about them change nothing.
//! Neither do keys that say how the weights were found, or with which kernel to run them.

use tokenmill_ir::MetaValue;

/// What a key may say. Null is nothing said.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rule {
    /// Anything: it changes no number here, or is read for what it says.
    Any,
    /// One of these texts, in capitals or not.
    Among(&'static [&'static str]),
    /// Any text but these.
    Except(&'static [&'static str]),
    /// Exactly this number.
    Number(f64),
    /// Nothing: false, zero, an empty text, list or map.
    Off,
    /// For some modules other values of keys of the same table.
    Modules(Table),
}

/// Keys and what they may say.
pub(super) type Table = &'static [(&'static [&'static str], Rule)];

impl Rule {
    /// Whether the value changes no number, or is one that is read.
    pub fn allows(self, value: &MetaValue) -> bool {
        let is = |known: &[&str]| {
            value.as_str().map(|text| known.iter().any(|k| k.eq_ignore_ascii_case(text)))
        };
        match self {
            Rule::Any => true,
            Rule::Among(known) => is(known) == Some(true),
            Rule::Except(known) => is(known) == Some(false),
            Rule::Number(number) => value.as_f64() == Some(number),
            Rule::Off => match value {
                MetaValue::Null | MetaValue::Bool(false) => true,
                MetaValue::Str(text) => text.is_empty(),
                MetaValue::List(list) => list.is_empty(),
                MetaValue::Map(map) => map.iter().all(|(_, value)| Rule::Off.allows(value)),
                number => number.as_f64() == Some(0.0),
            },
            Rule::Modules(_) => matches!(value, MetaValue::Map(_)),
        }
    }
}

/// Keys of every method.
pub(super) const EVERYWHERE: Table = &[
    // Which modules are left alone, or are not.
    (
        &[
            "modules_to_not_convert",
            "modules_to_convert",
            "modules_in_block_to_quantize",
            "ignored_layers",
            "ignore",
            "exclude_modules",
            "lm_head",
            "quant_lm_head",
            "block_name_to_quantize",
            "to_quant_block_names",
            "quant_block_list",
            "module_name_preceding_first_block",
            "packed_modules_mapping",
        ],
        Rule::Any,
    ),
    // By whom, on what and when.
    (
        &[
            "quant_method",
            "method",
            "meta",
            "producer",
            "quantizer",
            "version",
            "timestamp",
            "dataset",
            "tokenizer",
            "model_name_or_path",
            "model_file_base_name",
            "model_seqlen",
            "seqlen",
            "batch_size",
            "pad_token_id",
            "nsamples",
            "n_samples",
            "iters",
            "seed",
        ],
        Rule::Any,
    ),
    // With which kernel, and for how many tokens.
    (
        &[
            "backend",
            "use_cuda_fp16",
            "use_exllama",
            "exllama_config",
            "disable_exllama",
            "max_input_length",
            "do_fuse",
            "fuse_max_seq_len",
            "modules_to_fuse",
            "run_compressed",
            "use_optimized_inference",
            "use_triton",
            "use_deep_gemm",
        ],
        Rule::Any,
    ),
    // How activations and caches are encoded elsewhere.
    (
        &[
            "activation_scheme",
            "activation_scale_ub",
            "kv_cache_scheme",
            "kv_cache_dtype",
            "kv_cache_quant_algo",
            "act_bits",
            "act_group_size",
            "act_sym",
            "act_dynamic",
            "act_data_type",
            "static_kv_dtype",
            "static_attention_dtype",
        ],
        Rule::Any,
    ),
    // The tensors say so themselves.
    (&["bits", "group_size", "sym", "desc_act", "zero_point", "w_bit", "q_group_size"], Rule::Any),
    (&["dequantize", "adapter", "rotation", "rotation_config"], Rule::Off),
];

/// How AutoRound found the weights, whatever format it wrote them in.
const AUTO_ROUND_HISTORY: &[&str] = &[
    "autoround_version",
    "amp",
    "enable_quanted_input",
    "enable_minmax_tuning",
    "enable_norm_bias_tuning",
    "enable_full_range",
    "enable_alg_ext",
    "enable_torch_compile",
    "enable_adam",
    "enable_opt_rtn",
    "disable_opt_rtn",
    "gradient_accumulate_steps",
    "low_gpu_mem_usage",
    "low_cpu_mem_usage",
    "lr",
    "lr_scheduler",
    "minmax_lr",
    "model_free",
    "momentum",
    "nblocks",
    "not_use_best_mse",
    "dynamic_max_gap",
    "sampler",
    "scale_dtype",
    "scheme",
    "supported_types",
    "train_bs",
    "truncation",
    "regex_config",
    "quant_nontext_module",
];

/// How GPTQ and its tools found the weights.
const GPTQ_HISTORY: &[&str] = &[
    "act_group_aware",
    "static_groups",
    "true_sequential",
    "damp_percent",
    "damp_auto_increment",
    "mse",
    "scale_search",
    "gptaq",
    "foem",
    "v2",
    "v2_alpha",
    "v2_memory_device",
    "hyb_act",
    "cache_block_outputs",
    "cache_examples_on_gpu",
    "dynamic",
    "failsafe",
    "fallback",
    "calibration_paths",
    "mock_quantization",
    "block_list",
    "enable_deterministic_algorithms",
    "hessian",
    "offload_to_disk",
    "offload_to_disk_path",
    "auto_forward_data_parallel",
    "compute_device_filter",
    "vram_strategy",
    "dense_vram_strategy",
    "moe_vram_strategy",
    "gc_mode",
    "moe",
    "parallel_packing",
    "wait_for_submodule_finalizers",
    "pack_impl",
    "device",
];

/// Integer codes; an override for a module of floats only says that it is left alone.
const INTEGERS: Rule = Rule::Among(&["int", "int_sym", "int_asym"]);
const MODULE: Table = &[
    (&["data_type"], Rule::Among(&["int", "int_sym", "int_asym", "float"])),
    (&["super_bits", "super_group_size"], Rule::Off),
    (AUTO_ROUND_HISTORY, Rule::Any),
];

pub(super) const MXFP4: Table = &[];

pub(super) const GPTQ: Table = &[
    (GPTQ_HISTORY, Rule::Any),
    (AUTO_ROUND_HISTORY, Rule::Any),
    (&["checkpoint_format", "format"], Rule::Among(&["gptq", "gptq_v2"])),
    (&["pack_dtype"], Rule::Among(&["int32"])),
    (&["is_marlin_format"], Rule::Off),
    (&["data_type"], INTEGERS),
    (&["super_bits", "super_group_size"], Rule::Off),
    (&["extra_config"], Rule::Modules(MODULE)),
];

pub(super) const AWQ: Table = &[
    (&["bits", "w_bit"], Rule::Number(4.0)),
    // Which kernel; but MIT's own tool packs otherwise.
    (&["backend"], Rule::Except(&["llm-awq"])),
    // The others read what GEMM writes.
    (&["version", "format", "checkpoint_format"], Rule::Among(&["gemm", "exllama", "ipex"])),
    (&["pack_dtype"], Rule::Among(&["int32"])),
    (&["data_type"], INTEGERS),
    (&["super_bits", "super_group_size"], Rule::Off),
    (&["extra_config"], Rule::Modules(MODULE)),
    (
        &[
            "n_parallel_calib_samples",
            "duo_scaling",
            "apply_clip",
            "apply_scale",
            "calib_data",
            "quant_config",
        ],
        Rule::Any,
    ),
    (GPTQ_HISTORY, Rule::Any),
    (AUTO_ROUND_HISTORY, Rule::Any),
];

pub(super) const AUTO_ROUND: Table = &[
    (&["packing_format"], Rule::Any), // read
    (&["data_type"], INTEGERS),
    (&["super_bits", "super_group_size", "transform_config", "hadamard_config"], Rule::Off),
    (&["extra_config"], Rule::Modules(MODULE)),
    (GPTQ_HISTORY, Rule::Any),
    (AUTO_ROUND_HISTORY, Rule::Any),
];

pub(super) const FP8: Table = &[
    (&["weight_block_size"], Rule::Any), // read
    (&["fmt"], Rule::Among(&["e4m3", "float8_e4m3fn", "e5m2", "float8_e5m2"])),
    // How scales are rounded; their tensors say how they are stored.
    (&["scale_fmt"], Rule::Among(&["float", "ue8m0"])),
    (&["expert_dtype"], Rule::Among(&["fp8"])),
    (
        &["weight_per_tensor", "act_per_tensor", "weight_scheme", "is_checkpoint_fp8_serialized"],
        Rule::Any,
    ),
];

const COMPRESSED_FORMATS: Rule = Rule::Among(&[
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mixed-precision",
]);

/// One of `config_groups`: how weights are scaled is in their tensors.
pub(super) const GROUP: Table = &[
    (&["format"], COMPRESSED_FORMATS),
    (&["targets", "weights", "input_activations", "output_activations"], Rule::Any),
];

pub(super) const COMPRESSED: Table = &[
    (&["format"], COMPRESSED_FORMATS),
    (&["config_groups"], Rule::Any), // read
    // (Early versions call weights so that are found and stored.)
    (&["quantization_status"], Rule::Among(&["compressed", "frozen"])),
    (&["sparsity_config"], Rule::Any), // read
    (&["transform_config"], Rule::Off),
    (&["global_compression_ratio", "config_version"], Rule::Any),
];

pub(super) const BITSANDBYTES: Table = &[
    (&["load_in_8bit", "load_in_4bit", "_load_in_8bit", "_load_in_4bit"], Rule::Any),
    // How products are computed, and on which device.
    (
        &[
            "llm_int8_threshold",
            "llm_int8_skip_modules",
            "llm_int8_enable_fp32_cpu_offload",
            "llm_int8_has_fp16_weight",
            "bnb_4bit_compute_dtype",
        ],
        Rule::Any,
    ),
    // Each tensor has its map, its blocks and whether they are nested with it.
    (
        &[
            "bnb_4bit_quant_type",
            "bnb_4bit_use_double_quant",
            "bnb_4bit_quant_storage",
            "bnb_4bit_blocksize",
        ],
        Rule::Any,
    ),
];

pub(super) const MODELOPT: Table = &[
    (&["quant_algo"], Rule::Among(&["NVFP4", "FP8", "MIXED_PRECISION"])),
    (&["pre_quant_scale"], Rule::Off),
    (&["config_groups", "has_zero_point", "quantized_layers"], Rule::Any),
];

pub(super) const EXL3: Table = &[
    (&["format", "checkpoint_format"], Rule::Among(&["exl3"])),
    (&["codebook"], Rule::Among(&["3inst", "mcg", "mul1"])),
    (&["head_bits", "calibration", "out_scales", "tensor_storage", "layer_bits"], Rule::Any),
];
