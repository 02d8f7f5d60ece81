// Products with atoms by tensor cores, for few rows of x. A block has a strip of 16 rows of the matrix; its eight warps share the
// columns in runs of whole units that depend on the matrix alone, and their sums are added in order. Rows of x are columns of `mma`,
// which do not depend on each other: a row's results are the same in every step. Rows of x begin at multiples of 16 bytes, and have a
// multiple of eight columns.
#include "atoms.cuh"

static constexpr unsigned WARPS = 8;

// The strip of a part that a block has.
struct Strip {
  const uint8_t *atoms, *scales;
};

template <int F> DEV Strip strip_of(const Part& part, unsigned cols) {
  const uint8_t* atoms = at<const uint8_t>(part.rows);
  size_t first = (size_t)block_x() * units_of<F>(cols);
  return {atoms + first * unit_bytes<F>(), atoms + atoms_bytes<F>(part.count, cols) + first * Atoms<F>::SCALES};
}

// Sums of a warp's run of units, for R strips and 8·N rows of x; to `memory`, [warps][R][16][8·N + 1]. Each quad is asked for
// again, for the next unit, as soon as it was used.
template <int F, int N, int R>
DEV void add_run(const Strip (&strips)[R], const Args& a, float* memory, unsigned (&rows)[2]) {
  using A = Atoms<F>;
  constexpr int BLOCKS = A::UNIT / 32, OF_QUADS = BLOCKS < A::QUADS ? 1 : BLOCKS / A::QUADS, OF_BLOCK = A::QUADS / BLOCKS;
  // Whether there are registers for the next unit's scales beside these.
  constexpr bool IS_EARLY = A::IS_EARLY && N == 1 && R == 1;
  unsigned cols = a.n[0], all = units_of<F>(cols), unit = all * warp() / WARPS, end = all * (warp() + 1) / WARPS;
  Unit<F> units[R] = {};
  if (unit < end) {
    UNROLL for (int r = 0; r < R; r++) {
      UNROLL for (int i = 0; i < A::QUADS; i++) units[r].w[i] = load_once(strips[r].atoms + unit * unit_bytes<F>() + i * 512 + lane() * 16);
      A::hold(units[r].s, strips[r].scales + (size_t)unit * A::SCALES, lane() / 4);
    }
  }
  follow_the_last();
  unsigned count = rows_of(at<const Step>(a.p[0]), a.n[3]), first = block_y() * 8 * N;
  rows[0] = first, rows[1] = count;
  if (first >= count) return;
  const float* x[N];
  UNROLL for (int n = 0; n < N; n++) {
    // (What is computed beyond the rows there are is written nowhere.)
    unsigned row = first + 8 * n + lane() / 4;
    x[n] = row_of(a.p[2], row < count ? row : count - 1, a.n[1]);
  }
  Sums<N> sums[R];
  Ones<N> ones = {};
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int n = 0; n < N; n++)
      UNROLL for (int i = 0; i < 4; i++) sums[r].all[n][i] = sums[r].group[n][i] = 0.f;
  // Where the next unit's quads are.
  const uint8_t* from[R];
  UNROLL for (int r = 0; r < R; r++) from[r] = strips[r].atoms + (unit + 1) * unit_bytes<F>() + lane() * 16;
  for (unsigned k = unit * A::UNIT + lane() % 4 * 8; unit < end; unit++, k += A::UNIT) {
    bool more = unit + 1 < end;
    Quad scales[A::HELD ? A::HELD : 1] = {};
    auto next_scales = [&](int r, Quad* to) { A::hold(to, strips[r].scales + (size_t)(unit + 1) * A::SCALES, lane() / 4); };
    Steps<N> next = steps_of<N>(columns_of<N>(x, k, cols));
    if (IS_EARLY && more) next_scales(0, scales);
    UNROLL for (int b = 0; b < BLOCKS; b++) {
      // The next columns are asked for before these are used.
      Steps<N> steps = next;
      if (b + 1 < BLOCKS) next = steps_of<N>(columns_of<N>(x, k + 32 * (b + 1), cols));
      UNROLL for (int r = 0; r < R; r++) {
        A::template block<N>(units[r], b, steps, sums[r], ones, r == 0);
        if (!more || b % OF_QUADS != OF_QUADS - 1) continue;
        if (OF_BLOCK > 1) {
          UNROLL for (int i = b * OF_BLOCK; i < (b + 1) * OF_BLOCK; i++) units[r].w[i] = load_once(from[r] + i * 512);
        } else {
          units[r].w[b / OF_QUADS] = load_once(from[r] + b / OF_QUADS * 512);
        }
      }
    }
    UNROLL for (int r = 0; r < R; r++) from[r] += unit_bytes<F>();
    if (IS_EARLY && more) UNROLL for (int i = 0; i < A::HELD; i++) units[0].s[i] = scales[i];
    if (!IS_EARLY && more) UNROLL for (int r = 0; r < R; r++) next_scales(r, units[r].s);
  }
  constexpr unsigned LD = 8 * N + 1;
  UNROLL for (int r = 0; r < R; r++)
    UNROLL for (int n = 0; n < N; n++) {
      float* to = memory + ((warp() * R + r) * 16 + lane() / 4) * LD + 8 * n + lane() % 4 * 2;
      to[0] = sums[r].all[n][0], to[1] = sums[r].all[n][1];
      to[8 * LD] = sums[r].all[n][2], to[8 * LD + 1] = sums[r].all[n][3];
    }
  sync_block();
}

// What warps have summed of row `row` of strip r with row m of x, and what belongs to it.
template <int N, int R> DEV float whole(const float* memory, const Part& part, unsigned strip, unsigned r, unsigned row, unsigned m) {
  constexpr unsigned LD = 8 * N + 1;
  float sum = 0.f;
  for (unsigned w = 0; w < WARPS; w++) sum = add_rn(sum, memory[((w * R + r) * 16 + row) * LD + m]);
  unsigned at_row = strip * 16 + row;
  if (part.bias) sum = add_rn(sum, at<const float>(part.bias)[at_row]);
  return part.scales ? mul_rn(sum, at<const float>(part.scales)[at_row]) : sum;
}

// p: step, parts, x, out, what is added to it (or 0)
// n: columns, x ld, out ld, rows are outputs, ld of what is added
// f: scale, cap (0: none)
// A block: strip x of part z, 8·N rows of x. out is as of product (product.cu), added to rows of the same place.
template <int F, int N> DEV void narrow(const Args& a) {
  SHARED(float, memory, WARPS * 16 * (8 * N + 1));
  const Part& part = at<const Part>(a.p[1])[block_z()];
  if (block_x() * 16 >= part.count) return;
  const Strip strips[1] = {strip_of<F>(part, a.n[0])};
  unsigned rows[2];
  add_run<F, N, 1>(strips, a, memory, rows);
  for (unsigned i = thread(); i < 16 * 8 * N; i += threads()) {
    unsigned row = i % 16, m = i / 16, to = rows[0] + m;
    if (to >= rows[1] || block_x() * 16 + row >= part.count) continue;
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
  unsigned rows[2];
  add_run<F, N, 2>(strips, a, memory, rows);
  for (unsigned i = thread(); i < 16 * 8 * N; i += threads()) {
    unsigned row = i % 16, m = i / 16, to = rows[0] + m;
    if (to >= rows[1] || block_x() * 16 + row >= gates.count) continue;
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
