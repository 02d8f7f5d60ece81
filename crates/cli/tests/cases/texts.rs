//! Tokenizers, templates and what they are given.
