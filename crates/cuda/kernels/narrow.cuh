// Sums of strips of atoms with few rows of x: see narrow.cu.
#pragma once
#include "atoms.cuh"

static constexpr unsigned WARPS = 8;

// Rows of x that a block multiplies: from `first` on, of `count`; of pairs of a token and a slot each is that of its token.
struct Rows {
  unsigned first, count;
  const uint32_t* pairs;
  unsigned of_row;  // pairs a row of x
  DEV_IN unsigned x(unsigned i) const { return pairs ? pairs[i] / of_row : i; }
  DEV_IN unsigned out(unsigned i) const { return pairs ? pairs[i] : i; }
};

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
// again, for the next unit, as soon as it was used. `find` says which rows, once what others do in the step is seen; without any
// there are no sums.
template <int F, int N, int R, class Find>
DEV Rows add_run(const Strip (&strips)[R], const Args& a, float* memory, Find find) {
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
  const Rows rows = find();
  if (rows.first >= rows.count) return rows;
  const float* x[N];
  UNROLL for (int n = 0; n < N; n++) {
    // (What is computed beyond the rows there are is written nowhere.)
    unsigned row = rows.first + 8 * n + lane() / 4;
    x[n] = row_of(a.p[2], rows.x(row < rows.count ? row : rows.count - 1), a.n[1]);
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
  return rows;
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
