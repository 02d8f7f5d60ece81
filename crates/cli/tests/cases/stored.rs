//! How weights lie in files: quantised exports, indexes that do not fit, heads.
