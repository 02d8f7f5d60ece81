// Which keys of its sequence a query sees.
#pragma once
#include "words.cuh"

struct Range {
  unsigned first, end;
};

enum { CAUSAL, WINDOW, CHUNK, EVERY, AROUND };

// The keys that the query at `place` of `total` keys sees.
DEV Range seen(unsigned mask, unsigned n, unsigned place, unsigned total) {
  switch (mask) {
    case WINDOW: return {place + 1 > n ? place + 1 - n : 0, place + 1};
    case CHUNK: return {place / n * n, place + 1};
    case EVERY: return {0, total};
    case AROUND: return {place > n ? place - n : 0, (total - place > n ? place + n + 1 : total)};
    default: return {0, place + 1};
  }
}
