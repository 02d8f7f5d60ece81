//! tokenmill-quant
