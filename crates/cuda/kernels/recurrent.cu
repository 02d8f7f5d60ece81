// Recurrences in the order of tokens: causal convolution, gated delta rule, selective scan. A sequence's state is read from one
// slot of its table (zeros where there is none) and written to the other, which may be the same.
#include "numbers.cuh"

static constexpr uint32_t NONE = 0xffffffffu;

struct Slots {
  const float* from;  // null: zeros
  float* to;
};

DEV Slots slots_of(const Step* step, const Span& span, uint64_t cache, unsigned group, size_t len) {
  const uint32_t* table = array(step, step->tables) + span.tables[group];
  const float* from = table[0] == NONE ? nullptr : at<const float>(cache) + table[0] * len;
  return {from, at<float>(cache) + table[1] * len};
}

// x of a channel at place i of a span; before it what the state kept.
DEV float past(const float* x, unsigned ld, const float* tail, unsigned channels, unsigned kept, int i) {
  if (i >= 0) return x[(size_t)i * ld];
  return tail ? tail[(size_t)((int)kept + i) * channels] : 0.f;
}

// p: step, x, weight, bias, state, out
// n: channels, taps, ld of x, out, activation (as numbers.cuh, 255: none), group
// A thread a token and channel.
KERNEL(conv) {
  const Step* step = at<const Step>(a.p[0]);
  unsigned token = block_x(), channels = a.n[0], taps = a.n[1], c = block_y() * threads() + thread();
  if (token >= step->tokens || c >= channels) return;
  const Span& span = array<Span>(step, step->span)[array(step, step->span_of)[token]];
  Slots slots = slots_of(step, span, a.p[4], a.n[5], (size_t)(taps - 1) * channels);
  const float *x = row_of(a.p[1], span.first, a.n[2]) + c, *tail = slots.from ? slots.from + c : nullptr;
  float sum = a.p[3] ? at<const float>(a.p[3])[c] : 0.f;
  int place = (int)(token - span.first);
  for (unsigned j = 0; j < taps; j++) {
    float w = at<const float>(a.p[2])[(size_t)c * taps + j];
    sum = fmaf(w, past(x, a.n[2], tail, channels, taps - 1, place + (int)j - (int)(taps - 1)), sum);
  }
  row_to(a.p[5], token, a.n[3])[c] = a.n[4] == 255 ? sum : act(a.n[4], sum);
}

// As conv, after it: a thread a sequence and channel leaves the last inputs in the state. (What it reads of the state lies behind
// what it writes.)
KERNEL(conv_tail) {
  const Step* step = at<const Step>(a.p[0]);
  unsigned channels = a.n[0], kept = a.n[1] - 1, c = block_y() * threads() + thread();
  if (block_x() >= step->spans || c >= channels) return;
  const Span& span = array<Span>(step, step->span)[block_x()];
  Slots slots = slots_of(step, span, a.p[4], a.n[5], (size_t)kept * channels);
  const float *x = row_of(a.p[1], span.first, a.n[2]) + c, *tail = slots.from ? slots.from + c : nullptr;
  for (unsigned j = 0; j < kept; j++)
    slots.to[(size_t)j * channels + c] = past(x, a.n[2], tail, channels, kept, (int)(span.len + j) - (int)kept);
}

// Loads a row and gives it length 1.
DEV void load_unit(float* row, const float* x, unsigned len, float* scratch) {
  float square = 0.f;
  for (unsigned i = thread(); i < len; i += threads()) square = fmaf(x[i], x[i], square);
  float length = sqrtf(block_sum(square, scratch) + 1e-6f);
  for (unsigned i = thread(); i < len; i += threads()) row[i] = x[i] / length;
}

// p: step, q, k, v, a, b, a_log, dt_bias, state, out
// n: key heads, value heads, columns of a key head, of a value head, ld of q, k, v, a, b, out, group, whether key heads go round
// A block a sequence and value head; a thread has columns of the state. Memory: q, k.
KERNEL(delta_rule) {
  DYNAMIC(float, q);
  SHARED(float, scratch, 32);
  const Step* step = at<const Step>(a.p[0]);
  unsigned h = block_y(), k_dim = a.n[2], v_dim = a.n[3];
  if (block_x() >= step->spans) return;
  const Span& span = array<Span>(step, step->span)[block_x()];
  Slots slots = slots_of(step, span, a.p[8], a.n[10], (size_t)a.n[1] * k_dim * v_dim);
  size_t start = (size_t)h * k_dim * v_dim;
  const float* from = slots.from ? slots.from + start : nullptr;
  float *to = slots.to + start, *k = q + k_dim;
  unsigned group = a.n[11] ? h % a.n[0] : h / (a.n[1] / a.n[0]);
  float rate = -expf(at<const float>(a.p[6])[h]), bias = at<const float>(a.p[7])[h], scale = sqrtf((float)k_dim);
  for (unsigned token = span.first; token < span.first + span.len; token++) {
    load_unit(q, row_of(a.p[1], token, a.n[4]) + group * k_dim, k_dim, scratch);
    load_unit(k, row_of(a.p[2], token, a.n[5]) + group * k_dim, k_dim, scratch);
    sync_block();
    float beta = sigmoid(row_of(a.p[5], token, a.n[8])[h]);
    float decay = expf(rate * softplus(row_of(a.p[4], token, a.n[7])[h] + bias));
    const float* v = row_of(a.p[3], token, a.n[6]) + h * v_dim;
    for (unsigned j = thread(); j < v_dim; j += threads()) {
      float held = 0.f, sum = 0.f;
      for (unsigned i = 0; i < k_dim; i++) held = fmaf(from ? from[i * v_dim + j] * decay : 0.f, k[i], held);
      float delta = beta * (v[j] - held);
      for (unsigned i = 0; i < k_dim; i++) {
        float s = fmaf(k[i], delta, from ? from[i * v_dim + j] * decay : 0.f);
        to[i * v_dim + j] = s;
        sum = fmaf(s, q[i], sum);
      }
      row_to(a.p[9], token, a.n[9])[h * v_dim + j] = sum / scale;
    }
    from = to;
    sync_block();
  }
}

static constexpr unsigned LANES = 8;  // columns of a state at most 32 · LANES

// p: step, x, b, c, dt, a_log, skip, dt_bias, state, out
// n: heads, groups, columns of a head, of a state, ld of x, b, c, dt, out, group
// f: least and greatest step
// A warp a sequence and column of x: a row of the state, 32 columns apart in a lane.
KERNEL(scan) {
  const Step* step = at<const Step>(a.p[0]);
  unsigned column = block_y() * (threads() / 32) + warp(), dim = a.n[2], width = a.n[3], h = column / dim;
  if (block_x() >= step->spans || h >= a.n[0]) return;
  const Span& span = array<Span>(step, step->span)[block_x()];
  Slots slots = slots_of(step, span, a.p[8], a.n[9], (size_t)a.n[0] * dim * width);
  float state[LANES];
  UNROLL for (unsigned i = 0; i < LANES; i++) {
    unsigned s = 32 * i + lane();
    state[i] = s < width && slots.from ? slots.from[(size_t)column * width + s] : 0.f;
  }
  unsigned group = h / (a.n[0] / a.n[1]);
  float rate = -expf(at<const float>(a.p[5])[h]), skip = at<const float>(a.p[6])[h], bias = at<const float>(a.p[7])[h];
  for (unsigned token = span.first; token < span.first + span.len; token++) {
    const float *b = row_of(a.p[2], token, a.n[5]) + group * width, *c = row_of(a.p[3], token, a.n[6]) + group * width;
    float d = fminf(fmaxf(softplus(row_of(a.p[4], token, a.n[7])[h] + bias), a.f[0]), a.f[1]);
    float decay = expf(rate * d), x = row_of(a.p[1], token, a.n[4])[column], sum = 0.f;
    UNROLL for (unsigned i = 0; i < LANES; i++) {
      unsigned s = 32 * i + lane();
      if (s < width) {
        state[i] = fmaf(d * x, b[s], state[i] * decay);
        sum = fmaf(state[i], c[s], sum);
      }
    }
    sum = fmaf(skip, x, warp_sum(sum));
    if (lane() == 0) row_to(a.p[9], token, a.n[8])[column] = sum;
  }
  UNROLL for (unsigned i = 0; i < LANES; i++) {
    unsigned s = 32 * i + lane();
    if (s < width) slots.to[(size_t)column * width + s] = state[i];
  }
}
