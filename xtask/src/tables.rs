//! crates/cuda/kernels/formats_tables.cuh: what kernels need of the tables of crates/quant.

use std::fmt::{Display, Write as _};
use std::path::{Path, PathBuf};

use tokenmill_quant::fields::{code_book, code_values};
use tokenmill_quant::{FORMATS, FP4_VALUES, FormatId, NF4_VALUES};

const HEAD: &str = "\
// The tables of crates/quant for kernels, written by `cargo xtask tables`: do not edit.
#pragma once
#include \"words.cuh\"

";

/// Where the tables are.
pub fn path(root: &Path) -> PathBuf {
    root.join("crates/cuda/kernels/formats_tables.cuh")
}

/// The file's text.
pub fn text() -> String {
    let mut text = String::from(HEAD);
    text.push_str("// Numbers of the formats: rows of `FORMATS`.\nenum {\n");
    for format in FORMATS {
        let _ = writeln!(text, "  F_{:?} = {},", format.id, format.id as usize);
    }
    text.push_str(
        "};\n\n// X(number, name, weights of a block, bytes of a block) of each format whose rows lie \
         one by one.\n#define FOR_EACH_FORMAT(X)",
    );
    for format in FORMATS.iter().filter(|f| f.id.band_rows() == 1) {
        let (weights, bytes) = (format.block_weights, format.block_bytes);
        let row = format!("X({}, {:?}, {weights}, {bytes})", format.id as usize, format.id);
        let _ = write!(text, " \\\n  {row}");
    }
    text.push_str(
        "\n\n// What codes stand for; the second eight are negative where signs are apart.\n",
    );
    for (name, format) in [
        ("MXFP4", FormatId::MXFP4),
        ("IQ4_NL", FormatId::IQ4_NL),
        ("IQ1", FormatId::IQ1_S),
        ("IQ2", FormatId::IQ2_XXS),
        ("IQ3_XXS", FormatId::IQ3_XXS),
        ("IQ3_S", FormatId::IQ3_S),
    ] {
        table(&mut text, "int8_t", &format!("{name}_VALUES"), code_values(format));
    }
    text.push_str("// Bits of f32s.\n");
    for (name, values) in [("NF4", NF4_VALUES), ("FP4", FP4_VALUES)] {
        let bits = values.map(|v| format!("{:#010x}", v.to_bits()));
        table(&mut text, "uint32_t", &format!("{name}_VALUES"), &bits);
    }
    text.push_str("\n// Code books: runs of eight indices of 2 bits, or of four of 3 bits.\n");
    for format in FORMATS.iter().map(|f| f.id).filter(|&f| f != FormatId::IQ1_M) {
        let entries: Vec<String> =
            code_book(format).iter().map(|entry| format!("{entry:#06x}")).collect();
        if !entries.is_empty() {
            table(&mut text, "uint16_t", &format!("{format:?}_GRID"), &entries);
        }
    }
    text
}

/// One array, as many numbers to a line as 100 columns hold.
fn table(text: &mut String, of: &str, name: &str, values: &[impl Display]) {
    let _ = write!(text, "TABLE {of} {name}[{}] = {{", values.len());
    let mut width = usize::MAX;
    for value in values {
        let value = format!("{value},");
        if width.saturating_add(1 + value.len()) > 100 {
            text.push_str("\n ");
            width = 1;
        }
        let _ = write!(text, " {value}");
        width += 1 + value.len();
    }
    text.push_str("\n};\n");
}

#[cfg(test)]
mod tests {
    #[test]
    fn kernels_have_the_tables_of_the_formats() {
        let path = super::path(&crate::tidy::root());
        let there = std::fs::read_to_string(&path).unwrap();
        assert!(there == super::text(), "{}: run `cargo xtask tables`", path.display());
    }
}
