// ir::math for kernels: the same operations in the same order, so the same bits. (Compiled without contraction; quotients are
// rounded to nearest.)
#pragma once
#include "words.cuh"

// e^x.
DEV float exact_exp(float x) {
  float clamped = x < -87.33654f ? -87.33654f : x;
  clamped = clamped > 88.72283f ? 88.72283f : clamped;
  float n = clamped * 1.44269504f + 12582912.f - 12582912.f;
  float r = clamped - n * 0.6933594f - n * -2.1219444e-4f;
  float p = 1.9875691e-4f;
  p = p * r + 1.3981999e-3f;
  p = p * r + 8.333452e-3f;
  p = p * r + 4.1665796e-2f;
  p = p * r + 1.6666665e-1f;
  p = p * r + 0.5f;
  float e = p * (r * r) + r + 1.f;
  int k = n == n ? (int)n : 0, half = k >> 1;
  float value = e * float_of((uint32_t)(half + 127) << 23) * float_of((uint32_t)(k - half + 127) << 23);
  return x < -87.33654f ? 0.f : x > 88.72283f ? infinity() : x != x ? x : value;
}

// ln x of a positive, finite, normal number.
DEV double exact_ln(double x) {
  uint64_t bits = bits_of(x);
  int e = (int)(bits >> 52) - 1023;
  double m = double_of((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
  if (m > 1.41421356237309504880) m *= 0.5, e += 1;
  double t = (m - 1.0) / (m + 1.0), t2 = t * t, s = 0.0;
  for (int k = 25; k >= 1; k -= 2) s = s * t2 + 1.0 / (double)k;
  return 2.0 * t * s + (double)e * 0.693147180559945309417;
}

// The order in which numbers are compared where ties of -0 and 0 count (f32::total_cmp), and of equals the lower id first: a key
// that is greater for what comes first.
DEV uint64_t key_of(float x, uint32_t id) {
  uint32_t b = bits_of(x);
  return (uint64_t)(b >> 31 ? ~b : b | 0x80000000u) << 32 | (uint32_t)~id;
}
DEV uint32_t id_of(uint64_t key) { return ~(uint32_t)key; }
DEV float value_of(uint64_t key) {
  uint32_t b = (uint32_t)(key >> 32);
  return float_of(b >> 31 ? b & 0x7fffffffu : ~b);
}
