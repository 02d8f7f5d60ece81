//! tokenmill-store
