// What the card can do at most, measured beside models.
#include "words.cuh"

struct alignas(16) Words {
  uint32_t w[4];
};

// Reads memory and nothing else: p[0] begins n[0] times 16 bytes, n[1] is the number of blocks. p[1] gets a word that
// depends on all, almost never.
KERNEL(read_all) {
  const Words* from = at<const Words>(a.p[0]);
  size_t step = (size_t)a.n[1] * threads(), count = a.n[0];
  uint32_t sum = 0;
  size_t i = (size_t)block_x() * threads() + thread();
  for (; i + 3 * step < count; i += 4 * step) {
    Words four[4];
    for (unsigned k = 0; k < 4; k++) four[k] = from[i + k * step];
    for (unsigned k = 0; k < 4; k++) sum ^= four[k].w[0] ^ four[k].w[1] ^ four[k].w[2] ^ four[k].w[3];
  }
  for (; i < count; i += step) sum ^= from[i].w[0] ^ from[i].w[1] ^ from[i].w[2] ^ from[i].w[3];
  if (sum == 0x9e3779b9u) at<uint32_t>(a.p[1])[0] = sum;
}
