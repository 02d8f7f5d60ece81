// Products with atoms by tensor cores, for many rows of x: the bits of narrow.cu. A warp has a strip, a block eight of them and 64 or 32 rows
// of x, which lie in its memory as bf16, 128 columns at a time. The runs of columns that narrow.cu's warps share are summed one after
// another here, and added in the same order.
#include "atoms.cuh"

static constexpr unsigned WARPS = 8, COLUMNS = 128;
// Words from row to row: such that lanes of a load meet different banks.
static constexpr unsigned LD = COLUMNS / 2 + 4;

// A thread's part of 128 columns of 8·N rows: every so many quads of a row.
template <int N> struct Fetched {
  static constexpr unsigned OF_ROW = 32 / N;  // threads
  Quad q[N];
};

template <int N> DEV Fetched<N> fetched(const float* row, unsigned first, unsigned cols) {
  constexpr unsigned OF_ROW = Fetched<N>::OF_ROW;
  Fetched<N> f;
  UNROLL for (unsigned i = 0; i < N; i++) {
    // (Columns that are none meet zeros: any others.)
    unsigned k = first + (i * OF_ROW + thread() % OF_ROW) * 4;
    f.q[i] = load_here(row + (k < cols ? k : 0));
  }
  return f;
}

template <int N> DEV void put(uint32_t* x, const Fetched<N>& f) {
  constexpr unsigned OF_ROW = Fetched<N>::OF_ROW;
  UNROLL for (unsigned i = 0; i < N; i++) {
    uint32_t* to = x + thread() / OF_ROW * LD + (i * OF_ROW + thread() % OF_ROW) * 2;
    to[0] = pair_of(float_of(f.q[i].w[0]), float_of(f.q[i].w[1]));
    to[1] = pair_of(float_of(f.q[i].w[2]), float_of(f.q[i].w[3]));
  }
}

// p, n, f: as of narrow (narrow.cu)
// A block: eight strips from 8·x on of part z, 8·N rows of x.
template <int F> DEV void wide(const Args& a) {
  using A = Atoms<F>;
  // (As many rows as there are registers for.)
  constexpr int N = A::HELD ? 4 : 8;
  constexpr unsigned ROWS = 8 * N;
  constexpr int BLOCKS = A::UNIT / 32, PARTS = A::UNIT / COLUMNS, PER = BLOCKS / PARTS;
  SHARED(uint32_t, buffers, 2 * ROWS * LD);
  const Part& part = at<const Part>(a.p[1])[block_z()];
  unsigned cols = a.n[0], all = units_of<F>(cols), strips = (part.count + 15) / 16, strip = block_x() * WARPS + warp();
  if (block_x() * WARPS >= strips) return;
  // (A warp without a strip computes another's, and writes nothing.)
  unsigned own = strip < strips ? strip : strips - 1;
  const uint8_t *atoms = at<const uint8_t>(part.rows), *scales = atoms + atoms_bytes<F>(part.count, cols);
  const uint8_t* from = atoms + (size_t)own * all * unit_bytes<F>() + lane() * 16;
  scales += (size_t)own * all * A::SCALES;
  Unit<F> unit = {};
  UNROLL for (int i = 0; i < A::QUADS; i++) unit.w[i] = load_once(from + i * 512);
  follow_the_last();
  unsigned count = rows_of(at<const Step>(a.p[0]), a.n[3]), first = block_y() * ROWS;
  if (first >= count) return;
  unsigned loaded = first + thread() / Fetched<N>::OF_ROW;
  const float* row = row_of(a.p[2], loaded < count ? loaded : count - 1, a.n[1]);
  put<N>(buffers, fetched<N>(row, 0, cols));
  sync_block();
  float total[N][4] = {};
  Sums<N> sums = {};
  Ones<N> ones = {};
  unsigned run = 0;
  for (unsigned u = 0; u < all; u++) {
    bool more = u + 1 < all;
    from += unit_bytes<F>();
    A::hold(unit.s, scales + (size_t)u * A::SCALES, lane() / 4);
    // Runs that ended before this unit.
    for (; run < WARPS && all * (run + 1) / WARPS <= u; run++)
      UNROLL for (int n = 0; n < N; n++)
        UNROLL for (int i = 0; i < 4; i++) total[n][i] = add_rn(total[n][i], sums.all[n][i]), sums.all[n][i] = 0.f;
    UNROLL for (int p = 0; p < PARTS; p++) {
      unsigned now = u * PARTS + p;
      const uint32_t* x = buffers + now % 2 * ROWS * LD;
      bool is_last = now + 1 == all * PARTS;
      Fetched<N> next;
      if (!is_last) next = fetched<N>(row, (now + 1) * COLUMNS, cols);
      UNROLL for (int i = 0; i < PER; i++) {
        int b = p * PER + i;
        Steps<N> steps;
        UNROLL for (int n = 0; n < N; n++) {
          Quad q = *reinterpret_cast<const Quad*>(x + (8 * n + lane() / 4) * LD + i * 16 + lane() % 4 * 4);
          UNROLL for (int k = 0; k < 4; k++) steps.b[n][k] = q.w[k];
        }
        A::template block<N>(unit, b, steps, sums, ones, true);
        // Its quads are asked for again, for the next unit.
        if (!more) continue;
        UNROLL for (int k = 0; k < A::QUADS; k++)
          if (k * BLOCKS / A::QUADS + (BLOCKS > A::QUADS ? BLOCKS / A::QUADS - 1 : 0) == b) unit.w[k] = load_once(from + k * 512);
      }
      if (!is_last) put<N>(buffers + (now + 1) % 2 * ROWS * LD, next);
      sync_block();
    }
  }
  for (; run < WARPS; run++)
    UNROLL for (int n = 0; n < N; n++)
      UNROLL for (int i = 0; i < 4; i++) total[n][i] = add_rn(total[n][i], sums.all[n][i]), sums.all[n][i] = 0.f;
  UNROLL for (int n = 0; n < N; n++)
    UNROLL for (int i = 0; i < 4; i++) {
      unsigned in = strip * 16 + lane() / 4 + i / 2 * 8, to = first + 8 * n + lane() % 4 * 2 + i % 2;
      if (in >= part.count || to >= count) continue;
      float y = total[n][i];
      if (part.bias) y = add_rn(y, at<const float>(part.bias)[in]);
      if (part.scales) y = mul_rn(y, at<const float>(part.scales)[in]);
      y = capped(y * a.f[0], a.f[1]);
      if (a.p[4]) y = add_rn(row_of(a.p[4], to, a.n[4])[part.first + in], y);
      row_to(a.p[3], to, a.n[2])[part.first + in] = y;
    }
}

#define KERNELS(name) \
  KERNEL_AHEAD(wide_##name, 1) { wide<F_##name>(a); }
FOR_EACH_WIDE(KERNELS)
