//! Real processes that really die. See `tests/`.
