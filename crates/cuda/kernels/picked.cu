// Products of rows of x with the experts that were chosen for them, by tensor cores: the bits of narrow.cu. A block has a strip of an
// expert's matrix, of experts that have pairs, and goes over its pairs 8 or 16 at a time.
#include "narrow.cuh"

// p: step, parts by expert, x, out, starts, pairs, experts that have pairs: how many, and which
// n: columns, x ld, out ld, pairs a row of x
// f: scale
// Pairs of expert e: starts[e] … starts[e + 1] of pairs. out has a row a pair.
template <int F, int N> DEV void picked(const Args& a) {
  SHARED(float, memory, WARPS * 16 * (8 * N + 1));
  follow_the_last();
  const uint32_t *starts = at<const uint32_t>(a.p[4]), *pairs = at<const uint32_t>(a.p[5]), *chosen = at<const uint32_t>(a.p[6]);
  for (unsigned i = block_z(); i < chosen[0]; i += blocks_z()) {
    const Part& part = at<const Part>(a.p[1])[chosen[1 + i]];
    if (block_x() * 16 >= part.count) continue;
    const Strip strips[1] = {strip_of<F>(part, a.n[0])};
    unsigned start = starts[part.expert], count = starts[part.expert + 1] - start;
    for (unsigned first = block_y() * 8 * N; first < count; first += blocks_y() * 8 * N) {
      sync_block();  // (of the rows before)
      const Rows rows = add_run<F, N, 1>(strips, a, memory, [&] { return Rows{first, count, pairs + start, a.n[3]}; });
      for (unsigned k = thread(); k < 16 * 8 * N; k += threads()) {
        unsigned row = k % 16, m = k / 16;
        if (first + m >= count || block_x() * 16 + row >= part.count) continue;
        float y = whole<N, 1>(memory, part, block_x(), 0, row, m) * a.f[0];
        row_to(a.p[3], rows.out(first + m), a.n[2])[part.first + block_x() * 16 + row] = y;
      }
    }
  }
}

#define KERNELS(name)                                                                  \
  KERNEL_AHEAD(picked_8_##name, Atoms<F_##name>::TOGETHER) { picked<F_##name, 1>(a); } \
  KERNEL_AHEAD(picked_16_##name, 2) { picked<F_##name, 2>(a); }
FOR_EACH_ATOM(KERNELS)
