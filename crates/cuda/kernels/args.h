// The one argument of every kernel, by value. What stands where is said at the kernel.
#pragma once
#include <stdint.h>

struct Args {
  uint64_t p[16];  // addresses
  uint32_t n[24];  // whole numbers
  float f[8];
};

// A step as it lies in device memory: one array of words that begins with counts, then where its arrays begin (in words from
// its start). So what a step holds is data, and the launches of two steps differ by their grids only.
struct Step {
  uint32_t tokens, outputs, spans;
  uint32_t ids;        // [tokens]
  uint32_t positions;  // [tokens]
  uint32_t types;      // [tokens]
  uint32_t span_of;    // [tokens]
  uint32_t rows;       // token row of each output [outputs]
  uint32_t span;       // [spans] of Span
  uint32_t tables;     // block ids
  uint32_t copies;     // pairs: from, to
};

// As in a batch: a sequence's tokens of this step.
struct Span {
  uint32_t first, len, context;
  uint32_t tables[4];
};

// Stored rows of one format, and what belongs to them. Addresses may be 0 but that of the rows.
struct Part {
  uint64_t rows;     // stored rows, one after another
  uint64_t order;    // column of the matrix that each stored column is
  uint64_t bias;     // one a row of this part
  uint64_t scales;   // one a row of this part
  uint32_t first;    // row of the matrix that is its first
  uint32_t count;    // rows
  uint32_t stride;   // bytes from row to row
  uint32_t expert;   // which expert's matrix it belongs to
};
