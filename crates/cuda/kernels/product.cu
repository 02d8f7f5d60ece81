// Products with stored rows: a warp computes one row of a matrix with up to eight rows of x. Lane l sums the runs of eight
// columns l, l + 32, … in order, then the lanes' sums are added by a fixed tree: a result depends on its two rows only.
#include "formats.cuh"
#include "numbers.cuh"

static constexpr unsigned MOST = 8;

template <int F, int N>
DEV void sums(float (&sum)[MOST], const float* const (&x)[MOST], const uint8_t* row, const uint32_t* order, unsigned cols) {
  float own[N];
  bool is_aligned = true;
  UNROLL for (int i = 0; i < N; i++) own[i] = 0.f, is_aligned = is_aligned && (uintptr_t)x[i] % 16 == 0;
  for (unsigned run = lane(); run < cols / 8; run += 32) {
    float w[8], y[8];
    eight_at<F>(row, run, w);
    UNROLL for (int i = 0; i < N; i++) {
      if (order) {
        UNROLL for (unsigned k = 0; k < 8; k++) y[k] = x[i][order[8 * run + k]];
      } else {
        eight_of(x[i], run, is_aligned, y);
      }
      UNROLL for (unsigned k = 0; k < 8; k++) own[i] = fmaf(w[k], y[k], own[i]);
    }
  }
  // What is left of rows without blocks.
  for (unsigned k = cols / 8 * 8 + lane(); k < cols; k += 32) {
    float w = weight_at<F>(row, k);
    UNROLL for (int i = 0; i < N; i++) own[i] = fmaf(w, x[i][order ? order[k] : k], own[i]);
  }
  UNROLL for (int i = 0; i < N; i++) sum[i] = own[i];
}

// p: step, parts, x, out, starts, pairs
// n: columns, x ld, out ld, matrix rows a head (0: one head), rows are outputs, pairs a row of x
// f: scale, cap (0: none)
// A block: four rows of part z and eight rows of x. With starts, the rows are pairs of a token and a slot, and of a part those
// that its expert has: starts[e] … starts[e + 1] of pairs; a block goes on with others where there are more than blocks. out is scale · scales[row] · (x · row + bias[row]), capped.
template <int F> DEV void product(const Args& a) {
  const Part& part = at<const Part>(a.p[1])[block_z()];
  unsigned row = block_x() * 4 + warp();
  if (row >= part.count) return;
  const uint32_t* list = nullptr;
  unsigned count;
  if (a.p[4]) {
    const uint32_t* starts = at<const uint32_t>(a.p[4]);
    list = at<const uint32_t>(a.p[5]) + starts[part.expert];
    count = starts[part.expert + 1] - starts[part.expert];
  } else {
    count = rows_of(at<const Step>(a.p[0]), a.n[4]);
  }
  for (unsigned first = block_y() * MOST; first < count; first += blocks_y() * MOST) {
    unsigned n = count - first < MOST ? count - first : MOST, global = part.first + row;
    unsigned start = a.n[3] ? global / a.n[3] * a.n[0] : 0;
    const float* x[MOST];
    for (unsigned i = 0; i < MOST; i++) {
      unsigned r = first + (i < n ? i : 0);
      x[i] = row_of(a.p[2], list ? list[r] / a.n[5] : r, a.n[1]) + start;
    }
    const uint8_t* stored = at<const uint8_t>(part.rows) + (size_t)row * part.stride;
    const uint32_t* order = at<const uint32_t>(part.order);
    float sum[MOST];
    if (n == 1) {
      sums<F, 1>(sum, x, stored, order, a.n[0]);
      sum[0] = warp_sum(sum[0]);
    } else {
      sums<F, MOST>(sum, x, stored, order, a.n[0]);
      warp_sums(sum);
    }
    if (lane() == 0) {
      float bias = part.bias ? at<const float>(part.bias)[row] : 0.f;
      float scale = part.scales ? at<const float>(part.scales)[row] : 1.f;
      for (unsigned i = 0; i < n; i++) {
        unsigned to = list ? list[first + i] : first + i;
        row_to(a.p[3], to, a.n[2])[global] = capped((sum[i] + bias) * scale * a.f[0], a.f[1]);
      }
    }
  }
}

// p: step, part, positions, types, out
// n: columns, out ld, rows of types
// f: scale
// A block a token: its row of the table, if this part has it.
template <int F> DEV void embed(const Args& a) {
  const Step* step = at<const Step>(a.p[0]);
  const Part& part = *at<const Part>(a.p[1]);
  unsigned t = block_x();
  if (t >= step->tokens) return;
  unsigned id = array(step, step->ids)[t];
  if (id < part.first || id - part.first >= part.count) return;
  const uint8_t* stored = at<const uint8_t>(part.rows) + (size_t)(id - part.first) * part.stride;
  const uint32_t* order = at<const uint32_t>(part.order);
  unsigned type = array(step, step->types)[t];
  if (a.n[2] && type >= a.n[2]) type = a.n[2] - 1;
  const float* position = a.p[2] ? row_of(a.p[2], array(step, step->positions)[t], a.n[0]) : nullptr;
  const float* of_type = a.p[3] ? row_of(a.p[3], type, a.n[0]) : nullptr;
  float* out = row_to(a.p[4], t, a.n[1]);
  for (unsigned k = thread(); k < a.n[0]; k += threads()) {
    unsigned c = order ? order[k] : k;
    float y = mul_rn(weight_at<F>(stored, k), a.f[0]);
    if (position) y = add_rn(y, position[c]);
    if (of_type) y = add_rn(y, of_type[c]);
    out[c] = y;
  }
}

#define KERNELS(id, name, block_weights, block_bytes) \
  KERNEL(product_##name) { product<id>(a); }          \
  KERNEL(embed_##name) { embed<id>(a); }
FOR_EACH_FORMAT(KERNELS)
