//! What people type: commands, their limits and their words.
