//! tokenmill-ir
