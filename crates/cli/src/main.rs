//! The `tokenmill` command.
fn main() {}
