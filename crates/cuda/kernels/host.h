// The words of words.cuh as plain C++: a thread is a fiber, and a block is the fibers of one thread of the system, which runs
// block after block. What it does not show: races within a warp's step, memory order, speed.
#pragma once
#include <math.h>
#include <string.h>

#include "args.h"

namespace host {

// The running thread's place, and its block's.
struct Place {
  unsigned thread, threads, x, y, z, blocks_x, blocks_y, blocks_z;
};
extern thread_local const Place* now __attribute__((tls_model("initial-exec")));
// Memory that all threads of a block get in the same order; what the launch asked for comes first.
void* shared(size_t bytes, bool of_launch);
void sync_block();
// Gives one word and returns those of all lanes, in order; to be read before the next word of a warp.
const uint32_t* exchange(uint32_t word);
// As exchange, what the last lane to come made of all words.
uint32_t join(uint32_t word, uint32_t (*make)(const uint32_t* words));
// c + a·b of a warp (words.cuh, mma): six words a lane.
void mma(float* c, const uint32_t* words);
// As join of sums, of up to eight numbers each.
void join_sums(float* numbers, unsigned count);

}  // namespace host

#define DEV static inline
#define UNROLL
#define DEV_IN inline
#define TABLE static const
#define KERNEL(name) extern "C" __attribute__((visibility("default"))) void name(const Args& a)
#define KERNEL_AHEAD(name, blocks) KERNEL(name)
#define SHARED(type, name, count) type* name = static_cast<type*>(host::shared(sizeof(type) * (count), false))
#define DYNAMIC(type, name) type* name = static_cast<type*>(host::shared(0, true))

DEV unsigned thread() { return host::now->thread; }
DEV unsigned threads() { return host::now->threads; }
DEV unsigned block_x() { return host::now->x; }
DEV unsigned block_y() { return host::now->y; }
DEV unsigned block_z() { return host::now->z; }
DEV unsigned blocks_x() { return host::now->blocks_x; }
DEV unsigned blocks_y() { return host::now->blocks_y; }
DEV unsigned blocks_z() { return host::now->blocks_z; }

DEV void sync_block() { host::sync_block(); }
DEV void sync_warp() { host::exchange(0); }

DEV uint32_t bits_of(float x) {
  uint32_t b;
  memcpy(&b, &x, 4);
  return b;
}
DEV float float_of(uint32_t b) {
  float x;
  memcpy(&x, &b, 4);
  return x;
}
DEV uint64_t bits_of(double x) {
  uint64_t b;
  memcpy(&b, &x, 8);
  return b;
}
DEV double double_of(uint64_t b) {
  double x;
  memcpy(&x, &b, 8);
  return x;
}
// (Threads of a block take turns only where they wait.)
DEV uint32_t count_in(uint32_t* at, uint32_t n) {
  uint32_t before = *at;
  *at = before + n;
  return before;
}
DEV void mark_in(uint32_t* at, uint32_t bits) { *at |= bits; }
DEV unsigned bits_in(uint32_t x) { return __builtin_popcount(x); }
DEV float from_lane(float x, unsigned lane) { return float_of(host::exchange(bits_of(x))[lane]); }
DEV float across(float x, unsigned distance) { return from_lane(x, thread() % 32 ^ distance); }
DEV uint32_t across(uint32_t x, unsigned distance) { return host::exchange(x)[thread() % 32 ^ distance]; }

DEV float f16_to_f32(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
  if (rest >= 0x7c00) return float_of(sign | 0x7f800000u | (rest & 0x3ff) << 13 | (rest > 0x7c00 ? 0x400000u : 0));
  if (rest >= 0x400) return float_of(sign | ((rest << 13) + (112u << 23)));
  float x = (float)rest * 5.9604644775390625e-8f;  // 2^-24
  return float_of(sign | bits_of(x));
}
DEV uint16_t f32_to_f16(float x) {
  uint32_t b = bits_of(x), sign = b >> 16 & 0x8000, a = b & 0x7fffffff;
  if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
  if (a >= 0x47800000u) return (uint16_t)(sign | 0x7c00);  // from 65536 on; what is less may still round up to it
  if (a < 0x38800000u) {  // below the least normal number: adding 0.5 leaves its last 11 bits, rounded
    float r = float_of(a) + 0.5f;
    return (uint16_t)(sign | (bits_of(r) - 0x3f000000u));
  }
  uint32_t r = a + 0xfff + (a >> 13 & 1);
  return (uint16_t)(sign | (r - (112u << 23)) >> 13);
}
DEV float mul_rn(float x, float y) { return x * y; }
DEV float add_rn(float x, float y) { return x + y; }
DEV float sub_rn(float x, float y) { return x - y; }
DEV float div_rn(float x, float y) { return x / y; }
DEV double mul_rn(double x, double y) { return x * y; }
DEV double add_rn(double x, double y) { return x + y; }

DEV void follow_the_last() {}
DEV Quad load_once(const void* from) {
  if ((uintptr_t)from % sizeof(Quad)) __builtin_trap();  // as a GPU does
  return *static_cast<const Quad*>(from);
}
DEV Quad load_here(const void* from) { return load_once(from); }
DEV void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  uint32_t words[6] = {a0, a1, a2, a3, b0, b1};
  host::mma(c, words);
}
DEV void mma_fresh(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  c[0] = c[1] = c[2] = c[3] = 0.f;
  mma(c, a0, a1, a2, a3, b0, b1);
}
DEV float half_of_pair(uint32_t pair, unsigned i) { return float_of(i ? pair & 0xffff0000u : pair << 16); }
DEV uint32_t rounded_half(float x) {
  uint32_t b = bits_of(x);
  if ((b & 0x7fffffffu) > 0x7f800000u) return b >> 16 | 0x40;
  return (b + 0x7fff + (b >> 16 & 1)) >> 16;
}
DEV uint32_t pair_of(float first, float second) { return rounded_half(first) | rounded_half(second) << 16; }
DEV uint32_t sub_pairs(uint32_t a, uint32_t b) {
  return pair_of(half_of_pair(a, 0) - half_of_pair(b, 0), half_of_pair(a, 1) - half_of_pair(b, 1));
}
DEV uint32_t mul_pairs(uint32_t a, uint32_t b) {
  return pair_of(half_of_pair(a, 0) * half_of_pair(b, 0), half_of_pair(a, 1) * half_of_pair(b, 1));
}
DEV uint32_t and_or(uint32_t x, uint32_t mask, uint32_t bits) { return (x & mask) | bits; }

DEV uint32_t low_halves(uint32_t a, uint32_t b) { return (a & 0xffffu) | b << 16; }
DEV uint32_t high_halves(uint32_t a, uint32_t b) { return a >> 16 | (b & 0xffff0000u); }
template <int I> DEV uint32_t bytes_apart(uint32_t x) { return (x >> (16 * I) & 0xffu) | (x >> (16 * I) & 0xff00u) << 8; }
DEV uint32_t transposed(uint32_t x) {
  const uint32_t* words = host::exchange(x);
  unsigned g = thread() % 32 / 4, first = thread() % 4 * 2 * 4 + g / 2;
  return g % 2 ? high_halves(words[first], words[first + 4]) : low_halves(words[first], words[first + 4]);
}
DEV float exp2_of(float x) { return exp2f(x); }

DEV uint32_t sum_of(const uint32_t* words) {
  float sums[32];
  memcpy(sums, words, sizeof sums);
  for (unsigned d = 16; d > 0; d >>= 1)
    for (unsigned i = 0; i < d; i++) sums[i] += sums[i + d];
  return bits_of(sums[0]);
}
DEV uint32_t max_of(const uint32_t* words) {
  float most = float_of(words[0]);
  for (unsigned i = 1; i < 32; i++) most = fmaxf(most, float_of(words[i]));
  return bits_of(most);
}
DEV float warp_sum(float x) { return float_of(host::join(bits_of(x), sum_of)); }
template <int N> DEV void warp_sums(float (&x)[N]) { host::join_sums(x, N); }
DEV float warp_max(float x) { return float_of(host::join(bits_of(x), max_of)); }
DEV void warp_best(float& x, uint32_t& at) {
  for (unsigned d = 16; d > 0; d >>= 1) {
    float y = across(x, d);
    uint32_t other = across(at, d);
    if (y > x || (y == x && other < at)) x = y, at = other;
  }
}
