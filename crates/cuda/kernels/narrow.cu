// Products with atoms by tensor cores, for few rows of x. A block has a strip of 16 rows of the matrix; its eight warps share the
// columns in runs of whole units that depend on the matrix alone, and their sums are added in order. Rows of x are columns of `mma`,
// which do not depend on each other: a row's results are the same in every step. Rows of x begin at multiples of 16 bytes, and have a
// multiple of eight columns.
#include "narrow.cuh"

// Rows of the step that a block of the second axis has.
template <int N> DEV Rows all_rows(const Args& a) { return {block_y() * 8 * N, rows_of(at<const Step>(a.p[0]), a.n[3]), nullptr, 1}; }

// p: step, parts, x, out, what is added to it (or 0)
// n: columns, x ld, out ld, rows are outputs, ld of what is added
// f: scale, cap (0: none)
// A block: strip x of part z, 8·N rows of x. out is as of product (product.cu), added to rows of the same place.
template <int F, int N> DEV void narrow(const Args& a) {
  SHARED(float, memory, WARPS * 16 * (8 * N + 1));
  const Part& part = at<const Part>(a.p[1])[block_z()];
  if (block_x() * 16 >= part.count) return;
  const Strip strips[1] = {strip_of<F>(part, a.n[0])};
  const Rows rows = add_run<F, N, 1>(strips, a, memory, [&] { return all_rows<N>(a); });
  for (unsigned i = thread(); i < 16 * 8 * N; i += threads()) {
    unsigned row = i % 16, m = i / 16, to = rows.first + m;
    if (to >= rows.count || block_x() * 16 + row >= part.count) continue;
    float y = capped(whole<N, 1>(memory, part, block_x(), 0, row, m) * a.f[0], a.f[1]);
    unsigned global = part.first + block_x() * 16 + row;
    if (a.p[4]) y = add_rn(row_of(a.p[4], to, a.n[4])[global], y);
    row_to(a.p[3], to, a.n[2])[global] = y;
  }
}

// p: step, part of gates, x, out, part of linear branches
// n: columns, x ld, out ld, rows are outputs, kind of gate
// f: alpha, limit
// A block: strip x of both parts. out is the gate's function times the linear branch.
template <int F, int N> DEV void narrow_gated(const Args& a) {
  SHARED(float, memory, WARPS * 2 * 16 * (8 * N + 1));
  const Part &gates = *at<const Part>(a.p[1]), &ups = *at<const Part>(a.p[4]);
  const Strip strips[2] = {strip_of<F>(gates, a.n[0]), strip_of<F>(ups, a.n[0])};
  const Rows rows = add_run<F, N, 2>(strips, a, memory, [&] { return all_rows<N>(a); });
  for (unsigned i = thread(); i < 16 * 8 * N; i += threads()) {
    unsigned row = i % 16, m = i / 16, to = rows.first + m;
    if (to >= rows.count || block_x() * 16 + row >= gates.count) continue;
    float gate = whole<N, 2>(memory, gates, block_x(), 0, row, m), up = whole<N, 2>(memory, ups, block_x(), 1, row, m);
    row_to(a.p[3], to, a.n[2])[block_x() * 16 + row] = gated(a.n[4], gate, up, a.f[0], a.f[1]);
  }
}

#define KERNELS(name)                                                                  \
  KERNEL_AHEAD(narrow_8_##name, Atoms<F_##name>::TOGETHER) { narrow<F_##name, 1>(a); } \
  KERNEL_AHEAD(narrow_16_##name, 2) { narrow<F_##name, 2>(a); }
FOR_EACH_ATOM(KERNELS)
#define GATED(name) \
  KERNEL_AHEAD(gated_8_##name, 2) { narrow_gated<F_##name, 1>(a); }
FOR_EACH_GATED(GATED)
