//! Panels: the few runtime layouts that stored formats are repacked into, without loss.
//!
//! A panel is 16 output rows interleaved by 4 bytes of columns ("R16k4"), so that one 64-byte
//! vector holds 16 rows and a dot product over 4 columns lands in lane = row: no horizontal
//! sums, and the same order of additions for any number of tokens. A matrix is its panels one
//! after the other, the last one padded with zero weights.
//!
//! Integer layouts go by blocks of 32 columns, several blocks to a group that shares scales:
//!
//! ```text
//! group = [scales of the 16 rows: scale_bytes][block 0: low, high][block 1: low, high] …
//! low,  4 bits: 4 × 64 bytes; byte [8-column step s][row][j] = column 8s+j | column 8s+4+j << 4
//! low,  6 bits: 6 × 64 bytes; byte [half h][4-column step i < 3][row][j] = column 16h+4i+j | bits 2i of
//!       column 16h+12+j << 6
//! low,  8 bits: 8 × 64 bytes; byte [4-column step g][row][j] = column 4g+j
//! low,  3 bits: 3 × 64 bytes; byte [i][row][j] holds the codes of two steps of 4 columns, steps 0 and 1, 2 and 4, 5 and 6;
//!       bits 6, 7 are those 0, 1 of step 3, then of step 7, then bit 2 of both
//! low,  2 bits: 2 × 64 bytes; bits 2g of byte [h][row][j]    = column 16h+4g+j
//! low,  floats: 8 × 64 bytes; byte [4-column step g][4-row step r][p][i][j] = row 4r+i, column
//!       4g+2p+j
//! high, 1 bit:  64 bytes;     bit g of byte [row][j]         = the next bit of column 4g+j
//! ```
//!
//! Scales stay as they are in the file (f16; the 6-bit scales of q4_k to q6_k one to a byte), or are
//! f32 where they hold more or there is room. Codes of Ternary are raised by 7 for products of nibbles.
//! Scales u4 are the nibbles of 8 bytes, rows 0–7 in the low ones. Of each two scales u6 of a block the first and the
//! two lowest bits of the second are a byte, the four others u4.
//!
//! v are the sixteen values of a format, [`table`].
//!
//! | layout | from  | weight          | scales of a group, each ×16 rows          |
//! |--------|-------|-----------------|-------------------------------------------|
//! | Zero4  | q4_0  | (q − 8)·d       | d f16, 2 blocks                           |
//! | Min4   | q4_1  | q·d + m         | d f16, m f16                              |
//! | Zero5  | q5_0  | (q − 16)·d      | d f16, 2 blocks                           |
//! | Min5   | q5_1  | q·d + m         | d f16, m f16                              |
//! | Zero8  | q8_0  | (q − 128)·d     | d f16, 2 blocks                           |
//! | Super4 | q4_k  | (d·sc)·q − dm·m | d f16, dm f16, sc u8 × 8, m u8 × 8        |
//! | Super5 | q5_k  | (d·sc)·q − dm·m | d f16, dm f16, sc u8 × 8, m u8 × 8        |
//! | Super6 | q6_k  | (d·sc)·(q − 32) | d f32, sc i8 × 16                         |
//! | Table4 | mxfp4 | 2^(e−128)·v\[q\]  | e u8, 4 blocks                            |
//! | Super2 | q2_k | (d·sc)·q − dm·m | d f16, dm f16, (sc u4 × 2, m u4 × 2) × 8   |
//! | Super3 | q3_k | (d·(sc − 32))·(q − 4) | d f16, (sc u6 × 2) × 8               |
//! | Ternary | tq1_0, tq2_0 | d·(q − 1) | d f16, 8 blocks                        |
//! | Iq2Xxs, Iq2Xs, Iq2S, Iq3Xxs, Iq3S | the same | see [`books`] | d f16, s u4 |
//! | Iq1S, Iq1M | the same | see [`books`] | d f16, s u3                       |
//! | SuperTable | iq4_xs | (u·sc)·v\[q\] | u f32, sc i8 × 8                   |
//! | SuperTable, SuperTable16 | iq1, iq2, iq3 written out | (u·sc)·v\[q\] | u f32, sc i8 × 8 or 16 |
//! | HalfTable | iq4_nl | d·v\[q\] | d f16, 2 blocks                             |
//! | Nvfp4 | nvfp4 | (s/2)·v\[q\] | s e4m3 × 2                                |
//! | FloatTable16 | fp4_f32 | s·v\[q\] | s f32 × 2                               |
//! | Flat2, Flat2x64, Flat2x128 | u2_N | q·s + m | s f32, m f32, 1, 2 or 4 blocks |
//! | Flat3, Flat3x64, Flat3x128 | u3_N | q·s + m | s f32, m f32, 1, 2 or 4 blocks |
//! | Flat4, Flat4x64, Flat4x128 | u4_N | q·s + m | s f32, m f32, 1, 2 or 4 blocks |
//! | Flat8, Flat8x64, Flat8x128 | u8_N | q·s + m | s f32, m f32, 1, 2 or 4 blocks |
//! | Float8 | e4m3_32 | s·value | s f32                                          |
//! | Lookup4 | nf4_64, fp4_64 | v\[q\]·s | s f32, 2 blocks                       |
//! | Bf16   | bf16  | w               | none; \[column pair\]\[row\]\[2\], odd first    |
//! | F16    | f16   | w               | none; \[column\]\[row\]                       |
//! | F32    | f32   | w               | none; \[column\]\[row\]                       |
//! | Trellis | exl3_1 to exl3_8 | see [`trellis`] | factors of 8 panels              |
//!
//! A group that the row does not fill is zero beyond its columns.

pub mod books;
mod layout;
mod planes;
mod repack;
pub mod trellis;

pub use layout::{Group, PanelError, PanelLayout, PanelSpec};
pub use layout::{float_table, table, written_out_table};
pub use repack::{Lane, Values, bf16_at};

/// Columns in a block of the integer layouts.
pub const BLOCK_COLS: usize = 32;
/// Output rows in a panel: the 32-bit lanes of a 64-byte vector.
pub const PANEL_ROWS: usize = 16;
