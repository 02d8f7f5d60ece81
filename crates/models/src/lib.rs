//! tokenmill-models
