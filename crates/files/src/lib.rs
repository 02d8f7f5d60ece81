//! tokenmill-files
