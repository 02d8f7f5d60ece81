// Decodes rows as kernels do: reads {number of the format, blocks} and the blocks, writes the f32s,
// until the input ends.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

#include "formats.cuh"

template <int F> static void decode(const std::vector<uint64_t>& row, std::vector<float>& out) {
  const uint8_t* from = (const uint8_t*)row.data();
  for (unsigned col = 0; col < out.size(); col++) out[col] = weight_at<F>(from, col);
  for (unsigned run = 0; run < out.size() / 8; run++) {
    float eight[8];
    eight_at<F>(from, run, eight);
    if (memcmp(eight, &out[8 * run], sizeof eight)) abort();  // not what one at a time gives
  }
}

int main() {
  uint32_t head[2];
  while (fread(head, sizeof head, 1, stdin) == 1) {
    size_t weights = 0, bytes = 0;
    void (*run)(const std::vector<uint64_t>&, std::vector<float>&) = nullptr;
    switch (head[0]) {
#define ARM(ID, NAME, WEIGHTS, BYTES) \
  case ID: weights = WEIGHTS, bytes = BYTES, run = decode<ID>; break;
      FOR_EACH_FORMAT(ARM)
      default: fprintf(stderr, "no format %u\n", head[0]); return 1;
    }
    std::vector<uint64_t> row((bytes * head[1] + 7) / 8);
    std::vector<float> out(weights * head[1]);
    if (fread(row.data(), 1, bytes * head[1], stdin) != bytes * head[1]) return 2;
    run(row, out);
    if (fwrite(out.data(), 4, out.size(), stdout) != out.size()) return 3;
    fflush(stdout);
  }
  return 0;
}
