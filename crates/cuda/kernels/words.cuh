// The words that kernels are written in: here for nvcc, in host.h as plain C++ of the same meaning (-DTOKENMILL_HOST).
// Blocks have one axis of threads, whole warps of 32. Sums have a fixed order, so that a row's numbers depend on nothing else.
#pragma once
#include <stdint.h>

#include "args.h"

#ifdef TOKENMILL_HOST
#include "host.h"
#else
#include <cuda_fp16.h>

#define DEV static __device__ __forceinline__
// Before loops whose numbers are to stay in registers.
#define UNROLL _Pragma("unroll")
// The same for members of a class.
#define DEV_IN __device__ __forceinline__
// Tables of numbers that kernels read: TABLE uint8_t name[] = {…};
#define TABLE static __device__ const
// (In a graph a kernel starts while the one before it ends, and waits here until that is over and seen.)
#define KERNEL(name)                                                                        \
  DEV void name##_body(const Args& a);                                                      \
  extern "C" __global__ void __launch_bounds__(256) name(const __grid_constant__ Args a) { \
    follow_the_last();                                                                      \
    name##_body(a);                                                                         \
  }                                                                                         \
  DEV void name##_body(const Args& a)
// The same for one that waits by itself, by follow_the_last, before it reads or writes what other kernels of a step do.
// `blocks` of them are to run on a multiprocessor at once.
#define KERNEL_AHEAD(name, blocks)                                                                                    \
  DEV void name##_body(const Args& a);                                                                                \
  extern "C" __global__ void __launch_bounds__(256, blocks) name(const __grid_constant__ Args a) { name##_body(a); } \
  DEV void name##_body(const Args& a)
// Memory of a block; declared at the start of a kernel, by all its threads.
#define SHARED(type, name, count) __shared__ type name[count]
// The memory a launch asks for beside that; once a kernel.
extern __shared__ __align__(16) uint8_t dynamic_[];
#define DYNAMIC(type, name) type* name = reinterpret_cast<type*>(dynamic_)

// Numbers that are read once: not kept near.
DEV Quad load_once(const void* from) {
  Quad q;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(q.w[0]), "=r"(q.w[1]), "=r"(q.w[2]), "=r"(q.w[3])
               : "l"(from));
  return q;
}

// Numbers that others read, too. (As above it stays where it is among loads, so that few are held at once.)
DEV Quad load_here(const void* from) {
  Quad q;
  asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(q.w[0]), "=r"(q.w[1]), "=r"(q.w[2]), "=r"(q.w[3])
               : "l"(from));
  return q;
}

// c + a·b of matrices that a warp holds: a is 16 × 16, b 16 × 8 numbers in bf16, a pair a word; lane 4g + t has rows g and g + 8 of
// a and c, columns 2t, 2t + 1 (and, of a, those + 8), and of b column g. How sums are rounded is the tensor cores' own.
DEV void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// The same from zero.
DEV void mma_fresh(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1), "f"(0.f));
}
// Pairs of bf16 in a word, the first in its low half; each result is rounded once.
DEV uint32_t pair_of(float first, float second) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}
#if __CUDA_ARCH__ >= 900
DEV uint32_t sub_pairs(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
DEV uint32_t mul_pairs(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}
#else  // the same numbers by the only instruction for pairs there
DEV uint32_t fma_pairs(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
DEV uint32_t sub_pairs(uint32_t a, uint32_t b) { return fma_pairs(a, 0x3f803f80u, b ^ 0x80008000u); }
DEV uint32_t mul_pairs(uint32_t a, uint32_t b) { return fma_pairs(a, b, 0x80008000u); }
#endif
// (x & mask) | bits, in one instruction.
DEV uint32_t and_or(uint32_t x, uint32_t mask, uint32_t bits) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(d) : "r"(x), "r"(mask), "r"(bits));
  return d;
}

// Half-words of two words: the low ones, or the high ones, those of a first.
DEV uint32_t low_halves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); }
DEV uint32_t high_halves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); }
// Bytes 2·i and 2·i + 1 of a word, each in a half-word.
template <int I> DEV uint32_t bytes_apart(uint32_t x) { return __byte_perm(x, 0, I ? 0x4342 : 0x4140); }
// Of a matrix of 8 × 8 half-words that a warp holds, lane 4g + t columns 2t and 2t + 1 of row g, the transposed one, held so.
DEV uint32_t transposed(uint32_t x) {
  uint32_t d;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(x));
  return d;
}
// 2^x, nearly; of 0 it is 1, of -infinity 0.
DEV float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

DEV void follow_the_last() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

DEV unsigned thread() { return threadIdx.x; }
DEV unsigned threads() { return blockDim.x; }
DEV unsigned block_x() { return blockIdx.x; }
DEV unsigned block_y() { return blockIdx.y; }
DEV unsigned block_z() { return blockIdx.z; }
DEV unsigned blocks_x() { return gridDim.x; }
DEV unsigned blocks_y() { return gridDim.y; }
DEV unsigned blocks_z() { return gridDim.z; }

DEV void sync_block() { __syncthreads(); }
DEV void sync_warp() { __syncwarp(); }
// Counts in memory of the block; what was there before.
DEV uint32_t count_in(uint32_t* at, uint32_t n) { return atomicAdd(at, n); }
DEV void mark_in(uint32_t* at, uint32_t bits) { atomicOr(at, bits); }
DEV unsigned bits_in(uint32_t x) { return __popc(x); }
DEV float from_lane(float x, unsigned lane) { return __shfl_sync(0xffffffffu, x, lane); }
DEV float across(float x, unsigned distance) { return __shfl_xor_sync(0xffffffffu, x, distance); }
DEV uint32_t across(uint32_t x, unsigned distance) { return __shfl_xor_sync(0xffffffffu, x, distance); }

DEV uint32_t bits_of(float x) { return __float_as_uint(x); }
DEV float float_of(uint32_t x) { return __uint_as_float(x); }
DEV uint64_t bits_of(double x) { return (uint64_t)__double_as_longlong(x); }
DEV double double_of(uint64_t x) { return __longlong_as_double((long long)x); }
DEV float f16_to_f32(uint16_t x) { return __half2float(__ushort_as_half(x)); }
DEV uint16_t f32_to_f16(float x) { return __half_as_ushort(__float2half_rn(x)); }
// Products, sums and quotients that are rounded alone, whatever stands around them.
DEV float mul_rn(float x, float y) { return __fmul_rn(x, y); }
DEV float add_rn(float x, float y) { return __fadd_rn(x, y); }
DEV float sub_rn(float x, float y) { return __fsub_rn(x, y); }
DEV float div_rn(float x, float y) { return __fdiv_rn(x, y); }
DEV double mul_rn(double x, double y) { return __dmul_rn(x, y); }
DEV double add_rn(double x, double y) { return __dadd_rn(x, y); }

// By the tree of distances 16, 8, 4, 2, 1: the same bits in every lane.
DEV float warp_sum(float x) {
  for (unsigned d = 16; d > 0; d >>= 1) x = add_rn(x, across(x, d));
  return x;
}
// Of several numbers at once.
template <int N> DEV void warp_sums(float (&x)[N]) {
  UNROLL for (int i = 0; i < N; i++) x[i] = warp_sum(x[i]);
}
DEV float warp_max(float x) {
  for (unsigned d = 16; d > 0; d >>= 1) x = fmaxf(x, across(x, d));
  return x;
}
// The lane's greatest number and where it was, of all lanes; of equals the lower place.
DEV void warp_best(float& x, uint32_t& at) {
  for (unsigned d = 16; d > 0; d >>= 1) {
    float y = across(x, d);
    uint32_t other = across(at, d);
    if (y > x || (y == x && other < at)) x = y, at = other;
  }
}
#endif

DEV unsigned lane() { return thread() % 32; }
DEV unsigned warp() { return thread() / 32; }
DEV float infinity() { return float_of(0x7f800000u); }
DEV float bf16_to_f32(uint16_t x) { return float_of((uint32_t)x << 16); }
DEV uint16_t f32_to_bf16(float x) {
  uint32_t b = bits_of(x);
  if ((b & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(b >> 16 | 0x40);
  return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

// Numbers that need not be aligned to their size.
DEV uint16_t load16(const uint8_t* p) { return (uint16_t)(p[0] | p[1] << 8); }
DEV uint32_t load32(const uint8_t* p) { return load16(p) | (uint32_t)load16(p + 2) << 16; }
DEV uint64_t load64(const uint8_t* p) { return load32(p) | (uint64_t)load32(p + 4) << 32; }
DEV float load_f16(const uint8_t* p) { return f16_to_f32(load16(p)); }
DEV float load_f32(const uint8_t* p) { return float_of(load32(p)); }

// An address of the argument as a pointer.
template <class T> DEV T* at(uint64_t address) { return reinterpret_cast<T*>(address); }

// Sum over a block: of each warp, then of the warps in order. `scratch` holds 32 numbers.
DEV float block_sum(float x, float* scratch) {
  x = warp_sum(x);
  sync_block();
  if (lane() == 0) scratch[warp()] = x;
  sync_block();
  float sum = 0.f;
  for (unsigned w = 0; w < threads() / 32; w++) sum = add_rn(sum, scratch[w]);
  return sum;
}
