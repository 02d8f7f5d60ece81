// Functions of one number, and rows of a step.
#pragma once
#include "words.cuh"

// As args name them: in the order of Act, then what is no Act.
enum { SILU, GELU, GELU_TANH, RELU, RELU_SQUARED, CLAMPED };

DEV float sigmoid(float x) { return 1.f / (1.f + expf(-x)); }
DEV float softplus(float x) { return fmaxf(x, 0.f) + log1pf(expf(-fabsf(x))); }
DEV float capped(float x, float cap) { return cap > 0.f ? cap * tanhf(x / cap) : x; }

DEV float act(unsigned kind, float x) {
  switch (kind) {
    case SILU: return x * sigmoid(x);
    case GELU: return 0.5f * x * (1.f + erff(x * 0.70710678f));
    case GELU_TANH: return 0.5f * x * (1.f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case RELU: return fmaxf(x, 0.f);
    default: return fmaxf(x, 0.f) * fmaxf(x, 0.f);
  }
}

DEV float gated(unsigned kind, float gate, float up, float alpha, float limit) {
  if (kind != CLAMPED) return act(kind, gate) * up;
  float g = fminf(gate, limit), u = fminf(fmaxf(up, -limit), limit);
  return (u + 1.f) * g * sigmoid(alpha * g);
}

// Rows of a buffer in this step: one a token, or one an output.
DEV unsigned rows_of(const Step* step, unsigned of_outputs) { return of_outputs ? step->outputs : step->tokens; }

template <class T = uint32_t> DEV const T* array(const Step* step, uint32_t from) {
  return reinterpret_cast<const T*>(reinterpret_cast<const uint32_t*>(step) + from);
}

// Row `row` of a buffer with `ld` numbers from row to row.
DEV const float* row_of(uint64_t buffer, unsigned row, unsigned ld) { return at<const float>(buffer) + (size_t)row * ld; }
DEV float* row_to(uint64_t buffer, unsigned row, unsigned ld) { return at<float>(buffer) + (size_t)row * ld; }

struct alignas(16) Four {
  float v[4];
};

// Numbers 8·run … of a row of x; `is_aligned`: the row is at a multiple of 16 bytes.
DEV void eight_of(const float* x, unsigned run, bool is_aligned, float (&out)[8]) {
  if (is_aligned) {
    const Four* fours = reinterpret_cast<const Four*>(x) + 2 * run;
    Four first = fours[0], second = fours[1];
    for (unsigned i = 0; i < 4; i++) out[i] = first.v[i], out[i + 4] = second.v[i];
  } else {
    for (unsigned i = 0; i < 8; i++) out[i] = x[8 * run + i];
  }
}
