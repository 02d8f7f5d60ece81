//! tokenmill-text
