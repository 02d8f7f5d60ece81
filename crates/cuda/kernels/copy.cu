// Copies of cache blocks before a step computes.
#include "numbers.cuh"

// Where a cache lies, and bytes of its blocks.
struct Place {
  uint64_t base, block_bytes;
};

// p: step, places of the group's caches
// n: the first copy
// A block a copy and cache. Bytes of a block are whole words.
KERNEL(copy_blocks) {
  const Step* step = at<const Step>(a.p[0]);
  const Place& place = at<const Place>(a.p[1])[block_y()];
  const uint32_t* copy = array(step, step->copies) + 2 * (a.n[0] + block_x());
  const uint32_t* from = at<const uint32_t>(place.base + copy[0] * place.block_bytes);
  uint32_t* to = at<uint32_t>(place.base + copy[1] * place.block_bytes);
  for (uint64_t i = thread(); i < place.block_bytes / 4; i += threads()) to[i] = from[i];
}
