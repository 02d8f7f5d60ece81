//! tokenmill-backend
