//! tokenmill-cpu
