// Norms, elementwise functions, rows taken and pooled.
#include "numbers.cuh"

enum { RMS = 1, LAYER = 2 };
enum { NO_GATE, BEFORE, AFTER };

// p: step, x, sum, weight, bias, gate, root, out, eight to add
// n: columns, groups, rows are outputs, kind, gate, number to add, ld of x, sum, gate, root, out; whether weight and bias have
//    all columns; eight ld to add
// f: added to the weight, added under the root
// A block a row and group. What each thread has summed waits in out.
KERNEL(norm_rows) {
  SHARED(float, scratch, 32);
  unsigned row = block_x(), len = a.n[0] / a.n[1], start = block_y() * len;
  if (row >= rows_of(at<const Step>(a.p[0]), a.n[2])) return;
  const float* x = row_of(a.p[1], row, a.n[6]) + start;
  const float* gate = a.p[5] ? row_of(a.p[5], row, a.n[8]) + start : nullptr;
  float* out = row_to(a.p[7], row, a.n[10]) + start;
  float sum = 0.f;
  for (unsigned c = thread(); c < len; c += threads()) {
    float y = x[c];
    for (unsigned i = 0; i < a.n[5]; i++) y = add_rn(y, row_of(a.p[8 + i], row, a.n[13 + i])[start + c]);
    if (a.p[2]) row_to(a.p[2], row, a.n[7])[start + c] = y;
    if (a.n[4] == BEFORE) y *= act(SILU, gate[c]);
    out[c] = y;
    sum += y;
  }
  float mean = a.n[3] == LAYER ? block_sum(sum, scratch) / (float)len : 0.f;
  float square = 0.f;
  for (unsigned c = thread(); c < len; c += threads()) square = fmaf(out[c] - mean, out[c] - mean, square);
  float root = sqrtf(block_sum(square, scratch) / (float)len + a.f[1]);
  if (a.p[6] && thread() == 0) *row_to(a.p[6], row, a.n[9]) = root;
  for (unsigned c = thread(); c < len; c += threads()) {
    float y = (out[c] - mean) / root;
    if (a.p[3]) y *= at<const float>(a.p[3])[(a.n[11] ? start : 0) + c] + a.f[0];
    if (a.p[4]) y += at<const float>(a.p[4])[(a.n[12] ? start : 0) + c];
    if (a.n[4] == AFTER) y *= act(SILU, gate[c]);
    out[c] = y;
  }
}

// p: step, gate, up, out
// n: columns, rows are outputs, rows a row of the step, kind, ld of gate, up, out
// f: alpha, limit
KERNEL(gate) {
  size_t i = (size_t)block_x() * threads() + thread();
  unsigned row = (unsigned)(i / a.n[0]), c = (unsigned)(i % a.n[0]);
  if (row >= rows_of(at<const Step>(a.p[0]), a.n[1]) * a.n[2]) return;
  float g = row_of(a.p[1], row, a.n[4])[c], u = row_of(a.p[2], row, a.n[5])[c];
  row_to(a.p[3], row, a.n[6])[c] = gated(a.n[3], g, u, a.f[0], a.f[1]);
}

// Words of an expression, operands before what takes them.
enum { ARG = 0, CONST = 0x100, ADD = 0x200, MUL = 0x201, UNARY = 0x300 };
enum { SIGMOID = 5, TANH = 6 };  // after those of Act
static constexpr unsigned DEEPEST = 8;

// p: step, words, out, four operands
// n: columns, rows are outputs, words, out ld; of each operand its ld and whether it has one column
KERNEL(map) {
  size_t i = (size_t)block_x() * threads() + thread();
  unsigned row = (unsigned)(i / a.n[0]), c = (unsigned)(i % a.n[0]);
  if (row >= rows_of(at<const Step>(a.p[0]), a.n[1])) return;
  const uint32_t* words = at<const uint32_t>(a.p[1]);
  float stack[DEEPEST];
  unsigned top = 0;
  for (unsigned w = 0; w < a.n[2]; w++) {
    uint32_t word = words[w];
    if (word < CONST) {
      stack[top++] = row_of(a.p[3 + word], row, a.n[4 + 2 * word])[a.n[5 + 2 * word] ? 0 : c];
    } else if (word == CONST) {
      stack[top++] = float_of(words[++w]);
    } else if (word == ADD) {
      top--, stack[top - 1] = add_rn(stack[top - 1], stack[top]);
    } else if (word == MUL) {
      top--, stack[top - 1] = mul_rn(stack[top - 1], stack[top]);
    } else {
      unsigned f = word - UNARY;
      float x = stack[top - 1];
      stack[top - 1] = f == SIGMOID ? sigmoid(x) : f == TANH ? tanhf(x) : act(f, x);
    }
  }
  row_to(a.p[2], row, a.n[3])[c] = stack[0];
}

// p: step, x, out
// n: columns, ld of x, out
// A block an output.
KERNEL(take_rows) {
  const Step* step = at<const Step>(a.p[0]);
  if (block_x() >= step->outputs) return;
  const float* x = row_of(a.p[1], array(step, step->rows)[block_x()], a.n[1]);
  float* out = row_to(a.p[2], block_x(), a.n[2]);
  for (unsigned c = thread(); c < a.n[0]; c += threads()) out[c] = x[c];
}

enum { MEAN, FIRST, LAST };

// p: step, x, out
// n: columns, ld of x, out, kind, whether its length becomes 1
// A block an output: the vector of its span.
KERNEL(pool) {
  SHARED(float, scratch, 32);
  const Step* step = at<const Step>(a.p[0]);
  if (block_x() >= step->outputs) return;
  unsigned row = array(step, step->rows)[block_x()];
  const Span& span = array<Span>(step, step->span)[array(step, step->span_of)[row]];
  unsigned first = a.n[3] == LAST ? span.first + span.len - 1 : span.first, count = a.n[3] == MEAN ? span.len : 1;
  float* out = row_to(a.p[2], block_x(), a.n[2]);
  float square = 0.f;
  for (unsigned c = thread(); c < a.n[0]; c += threads()) {
    float sum = 0.f;
    for (unsigned r = 0; r < count; r++) sum += row_of(a.p[1], first + r, a.n[1])[c];
    out[c] = sum / (float)count;
    square = fmaf(out[c], out[c], square);
  }
  if (!a.n[4]) return;
  float length = fmaxf(sqrtf(block_sum(square, scratch)), 1e-12f);
  for (unsigned c = thread(); c < a.n[0]; c += threads()) out[c] /= length;
}
