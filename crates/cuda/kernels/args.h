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
  uint32_t wants;      // [outputs] of Want
  uint32_t history;    // tokens that penalties look at
  uint32_t bias;       // pairs: token, what is added to its logit
  uint32_t masks;      // bits of tokens that may come
  uint32_t items;      // what attend_few is to do: so many,
  uint32_t item;       // and each [items] of Item
  uint32_t joins;      // [spans] of Join
};

// Sequences with at most so many tokens in a step are attend_few's.
enum { FEW_TOKENS = 4 };
// Keys that are summed up alone; sums of several such splits are joined in their order.
enum { SPLIT_KEYS = 512 };

// Splits of a sequence's keys. Their sums go to places from `slot` on, one a split; without one (0xffffffff) they are joined at once.
struct Item {
  uint32_t span, first, end, slot;
};

// Where sums of a sequence's splits are that are to be joined, and how many; 0: they are joined already.
struct Join {
  uint32_t slot, splits;
};

enum { NOTHING, SAMPLE, SCORE };

// What is wanted of an output (ir::OutputKind, ir::SamplingParams). Nothing: a host reads the row.
struct Want {
  uint32_t kind;
  uint32_t target;  // SCORE: the token
  uint32_t tops;    // 1 + alternatives with log-probabilities; 0: no log-probabilities
  float temperature, top_p, min_p;
  uint32_t top_k;
  float repetition, presence, frequency;
  uint32_t number[2];   // the uniform number, an f64
  uint32_t history[3];  // first, count, how many of them are the prompt
  uint32_t bias[2];     // first, count
  uint32_t mask;        // which, or 0xffffffff
};
static_assert(sizeof(Want) == 18 * 4, "as src/batch.rs writes it");

// What comes of it, before `tops` pairs of a token and its log-probability.
struct Chosen {
  uint32_t token;
  float logprob;
  uint32_t tops, valid;
};

// What is known of a row's logits in a run of CHUNK tokens.
struct Chunk {
  float best;        // the greatest after bias, penalties and mask, and the token it is of; of equals the lowest
  uint32_t best_at;  // 0xffffffff: all are -infinity
  float most;        // the greatest as the model has it
  uint32_t nans;     // bit 0: one of them is no number; bit 1: one of the model's is
  float sum, own_sum;  // of e^(x - best), as it is drawn from, and of e^(x - most)
  double wide;       // as sum, in f64
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

// Four words: what a lane loads at once.
struct alignas(16) Quad {
  uint32_t w[4];
};
