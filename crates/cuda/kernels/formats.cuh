// Numbers out of stored rows, for every format that has rows: one by `weight_at<F_Q4_K>(row, col)`,
// or eight at once by `eight_at`, which computes what they share once.
//
// The same operations on the same f32 as `decode` of crates/quant, which defines each format, so
// that the bits are the same.
//
// Rows lie as in files: `row` is a whole number of blocks behind an address that is a multiple of
// 16, so a load of 2, 4 or 8 bytes is aligned where the block's size and the offset are multiples
// of that. The host build checks it.
#pragma once
#include "formats_tables.cuh"
#include "words.cuh"

// One format: its number, and the shape of its blocks.
template <int F> struct Stored;
#define STORED(ID, NAME, WEIGHTS, BYTES)                        \
  template <> struct Stored<F_##NAME> {                         \
    static constexpr unsigned weights = WEIGHTS, bytes = BYTES; \
  };
FOR_EACH_FORMAT(STORED)
#undef STORED

// ---- loads and small floats ---------------------------------------------------------------------
template <class T> DEV T stored(const uint8_t* at) {
#ifdef TOKENMILL_HOST
  if ((uintptr_t)at % sizeof(T)) __builtin_trap();  // as a GPU does
  T value;
  __builtin_memcpy(&value, at, sizeof value);
  return value;
#else
  return *(const T*)at;
#endif
}
DEV float float_at(const uint8_t* at) { return float_of(stored<uint32_t>(at)); }
DEV unsigned half_at(const uint8_t* at) { return stored<uint16_t>(at); }

DEV float f16_at(const uint8_t* at) { return f16_to_f32((uint16_t)half_at(at)); }

// The codes of NaN are ±480 here.
DEV float from_e4m3(unsigned bits) {
  float magnitude = float_of((bits & 0x7f) << 20) * 0x1p120f;
  return bits & 0x80 ? -magnitude : magnitude;
}
// 2^(e − 128)
DEV float half_of_e8m0(unsigned e) { return float_of(e < 2 ? 0x00200000u << e : (e - 1) << 23); }
DEV float half_of_ue4m3(unsigned bits) {
  return bits == 0x7f ? 0.f : 0.5f * from_e4m3(bits & 0x7f);
}

// ---- codes: eight columns from a multiple of eight on -------------------------------------------
// A byte of eight in a word, the first in the lowest.
DEV unsigned byte_of(uint64_t bytes, unsigned i) { return (unsigned)(bytes >> (8 * i)) & 255; }
DEV uint64_t in_each(uint64_t byte) { return 0x0101010101010101ull * byte; }

// Eight bytes at an address that is a multiple of A.
template <int A> DEV uint64_t eight_bytes(const uint8_t* at) {
  if (A == 8) return stored<uint64_t>(at);
  uint64_t bytes = 0;
  for (unsigned i = 0; i < 8; i += A) {
    uint64_t part = A == 4 ? stored<uint32_t>(at + i) : A == 2 ? stored<uint16_t>(at + i) : at[i];
    bytes |= part << (8 * i);
  }
  return bytes;
}
// Low nibbles of n bytes are columns 0 … n − 1, high nibbles the next n.
template <int A> DEV uint64_t nibbles_of_halves(const uint8_t* codes, unsigned c, unsigned n) {
  return eight_bytes<A>(codes + c % n) >> (c / n * 4) & in_each(15);
}
// 2-bit codes of 32 columns at a time, four times in 32 bytes.
template <int A> DEV uint64_t two_bits(const uint8_t* codes, unsigned c) {
  return eight_bytes<A>(codes + c / 128 * 32 + c % 32) >> (c / 32 % 4 * 2) & in_each(3);
}
// Nibble i of a row of bytes, the low one first.
DEV unsigned nibble_at(const uint8_t* bytes, unsigned i) {
  return bytes[i / 2] >> (i % 2 * 4) & 15;
}
DEV unsigned nibble_of(uint32_t word, unsigned i) { return word >> (4 * i) & 15; }

// A function that gives number i of a run of eight columns. `b` is the block they are in, `c` the
// first of them there; of formats without blocks, `b` is where the first is.
template <int F> struct As {};
#define RUN(NAME) DEV auto run_in(As<F_##NAME>, const uint8_t* b, unsigned c)
#define PLAIN(NAME, T, VALUE)                                                  \
  RUN(NAME) {                                                                  \
    (void)c;                                                                   \
    return [=](unsigned i) {                                                   \
      T bits = stored<T>(b + i * sizeof(T));                                   \
      return VALUE;                                                            \
    };                                                                         \
  }

// ---- plain numbers ------------------------------------------------------------------------------
PLAIN(F32, uint32_t, float_of(bits))
PLAIN(F16, uint16_t, f16_to_f32(bits))
PLAIN(BF16, uint16_t, bf16_to_f32(bits))
PLAIN(U8, uint8_t, (float)bits)
PLAIN(I8, int8_t, (float)bits)
PLAIN(I16, int16_t, (float)bits)
PLAIN(I32, int32_t, (float)bits)
PLAIN(I64, int64_t, (float)bits)
PLAIN(F64, double, (float)bits)
PLAIN(F8_E4M3, uint8_t, (bits & 0x7f) == 0x7f ? float_of(0x7fc00000u) : from_e4m3(bits))
PLAIN(F8_E5M2, uint8_t, f16_to_f32((uint16_t)(bits << 8)))
#undef PLAIN

// ---- blocks of 32 and 64 ------------------------------------------------------------------------
RUN(Q8_0) {
  float d = f16_at(b);
  uint64_t codes = eight_bytes<2>(b + 2 + c);
  return [=](unsigned i) { return (float)(int8_t)byte_of(codes, i) * d; };
}
RUN(Q4_0) {
  float d = f16_at(b);
  uint64_t codes = nibbles_of_halves<2>(b + 2, c, 16);
  return [=](unsigned i) { return d * ((float)byte_of(codes, i) - 8.f); };
}
RUN(Q4_1) {
  float d = f16_at(b), m = f16_at(b + 2);
  uint64_t codes = nibbles_of_halves<4>(b + 4, c, 16);
  return [=](unsigned i) { return add_rn(d * (float)byte_of(codes, i), m); };
}
// The fifth bits of 32 columns stand before their nibbles.
RUN(Q5_0) {
  float d = f16_at(b);
  unsigned high = b[2 + c / 8];
  uint64_t codes = nibbles_of_halves<2>(b + 6, c, 16);
  return [=](unsigned i) {
    return d * ((float)(byte_of(codes, i) | (high >> i & 1) << 4) - 16.f);
  };
}
RUN(Q5_1) {
  float d = f16_at(b), m = f16_at(b + 2);
  unsigned high = b[4 + c / 8];
  uint64_t codes = nibbles_of_halves<8>(b + 8, c, 16);
  return [=](unsigned i) {
    return add_rn(d * (float)(byte_of(codes, i) | (high >> i & 1) << 4), m);
  };
}
RUN(IQ4_NL) {
  float d = f16_at(b);
  uint64_t codes = nibbles_of_halves<2>(b + 2, c, 16);
  return [=](unsigned i) { return d * (float)IQ4_NL_VALUES[byte_of(codes, i)]; };
}
RUN(MXFP4) {
  float scale = half_of_e8m0(b[0]);
  uint64_t codes = nibbles_of_halves<1>(b + 1, c, 16);
  return [=](unsigned i) { return scale * (float)MXFP4_VALUES[byte_of(codes, i)]; };
}
RUN(NVFP4) {
  unsigned sub = c / 16;
  float scale = half_of_ue4m3(b[sub]);
  uint64_t codes = nibbles_of_halves<4>(b + 4 + 8 * sub, c % 16, 8);
  return [=](unsigned i) { return scale * (float)MXFP4_VALUES[byte_of(codes, i)]; };
}

// ---- superblocks of 256 with codes --------------------------------------------------------------
// The 6-bit scale or minimum of 32 columns in the 12 bytes of q4_k and q5_k.
DEV float scale_of_32(const uint8_t* scales, unsigned s) {
  return (float)(s < 4 ? scales[s] & 63 : (scales[s + 4] & 15) | scales[s - 4] >> 6 << 4);
}
DEV float min_of_32(const uint8_t* scales, unsigned s) {
  return (float)(s < 4 ? scales[s + 4] & 63 : scales[s + 4] >> 4 | scales[s] >> 6 << 4);
}
DEV auto scaled_less_min(const uint8_t* b, unsigned s, uint64_t codes) {
  float scale = f16_at(b) * scale_of_32(b + 4, s), min = f16_at(b + 2) * min_of_32(b + 4, s);
  return [=](unsigned i) { return sub_rn(scale * (float)byte_of(codes, i), min); };
}
RUN(Q4_K) {
  return scaled_less_min(b, c / 32, nibbles_of_halves<8>(b + 16 + c / 64 * 32, c % 64, 32));
}
RUN(Q5_K) {
  uint64_t low = nibbles_of_halves<8>(b + 48 + c / 64 * 32, c % 64, 32);
  uint64_t high = eight_bytes<8>(b + 16 + c % 32) >> (c / 32) & in_each(1);
  return scaled_less_min(b, c / 32, low | high << 4);
}
RUN(Q6_K) {
  unsigned half = c / 128, group = c / 32 % 4, in = c % 32;
  uint64_t low = eight_bytes<2>(b + 64 * half + 32 * (group % 2) + in) >> (group / 2 * 4);
  uint64_t high = eight_bytes<2>(b + 128 + 32 * half + in) >> (2 * group);
  uint64_t codes = (low & in_each(15)) | (high & in_each(3)) << 4;
  float scale = f16_at(b + 208) * (float)(int8_t)b[192 + c / 16];
  return [=](unsigned i) { return scale * ((float)byte_of(codes, i) - 32.f); };
}
RUN(Q2_K) {
  unsigned s = b[c / 16];
  float scale = f16_at(b + 80) * (float)(s & 15), min = f16_at(b + 82) * (float)(s >> 4);
  uint64_t codes = two_bits<4>(b + 16, c);
  return [=](unsigned i) { return sub_rn(scale * (float)byte_of(codes, i), min); };
}
RUN(Q3_K) {
  unsigned s = c / 16;
  unsigned low = b[96 + s % 8] >> (s / 8 * 4) & 15, high = b[104 + s % 4] >> (s / 4 * 2) & 3;
  float scale = f16_at(b + 108) * (float)((int)(low | high << 4) - 32);
  uint64_t third = eight_bytes<2>(b + c % 32) >> (c / 32) & in_each(1);
  uint64_t codes = two_bits<2>(b + 32, c) | third << 2;
  return [=](unsigned i) { return scale * ((float)byte_of(codes, i) - 4.f); };
}
RUN(TQ2_0) {
  float d = f16_at(b + 64);
  uint64_t codes = two_bits<2>(b, c);
  return [=](unsigned i) { return d * ((float)byte_of(codes, i) - 1.f); };
}
// Five digits to base 3 in a byte: 32 bytes for 160 columns, 16 for 80, and 4 bytes of four digits.
RUN(TQ1_0) {
  float d = f16_at(b + 52);
  unsigned first = c < 160 ? 0 : c < 240 ? 160 : 240, n = c < 160 ? 32 : c < 240 ? 16 : 4;
  const uint8_t* bytes = b + (c < 160 ? 0 : c < 240 ? 32 : 48);
  return [=](unsigned i) {
    unsigned at = c + i - first;
    unsigned byte = bytes[at % n] * byte_of(0x511b090301ull, at / n) & 255;  // 1, 3, 9, 27, 81
    return d * ((float)(byte * 3 >> 8) - 1.f);
  };
}

// ---- superblocks of 256 with code books ---------------------------------------------------------
// (unit · scale) · value; scales are odd numbers kept as their halves but in iq4_xs.
DEV float odd(unsigned half) { return (float)(2 * half + 1); }
// Column i in an entry of eight 2-bit indices, or of four 3-bit ones, negative where its sign is.
DEV unsigned of_eight(unsigned entry, unsigned i, unsigned signs) {
  return (entry >> (2 * i) & 3) | (signs >> i & 1) << 3;
}
DEV unsigned of_four(unsigned entry, unsigned i, unsigned signs) {
  return (entry >> (3 * i) & 7) | (signs >> i & 1) << 3;
}
// The eight signs behind a 7-bit index: the eighth makes their number even.
DEV unsigned even_signs(unsigned index) {
  unsigned low = index & 127, parity = low ^ low >> 4;
  parity ^= parity >> 2;
  return low | ((parity ^ parity >> 1) & 1) << 7;
}
DEV unsigned word_of_halves(const uint8_t* at) { return half_at(at) | half_at(at + 2) << 16; }

DEV auto one_of_three(float scale, unsigned entry, bool minus) {
  unsigned signs = minus ? 255 : 0;
  return [=](unsigned i) { return scale * (float)IQ1_VALUES[of_eight(entry, i, signs)]; };
}
RUN(IQ1_S) {
  unsigned run = c / 8, high = half_at(b + 34 + c / 32 * 2);
  unsigned entry = IQ1_S_GRID[b[2 + run] | (high >> (run % 4 * 3) & 7) << 8];
  return one_of_three(f16_at(b) * 0.125f * odd(high >> 12 & 7), entry, high >> 15);
}
RUN(IQ1_M) {
  const uint8_t* scales = b + 48;
  unsigned d = 0, run = c / 8, nibble = nibble_at(b + 32, run), s = c / 16;
  for (unsigned i = 0; i < 4; i++) d |= half_at(scales + 2 * i) >> 12 << (4 * i);
  float scale = odd(half_at(scales + s / 4 * 2) >> (s % 4 * 3) & 7);
  unsigned entry = IQ1_S_GRID[b[run] | (nibble & 7) << 8];
  return one_of_three(f16_to_f32((uint16_t)d) * 0.125f * scale, entry, nibble >> 3);
}
DEV auto eight_magnitudes(float scale, unsigned entry, unsigned signs) {
  return [=](unsigned i) { return scale * (float)IQ2_VALUES[of_eight(entry, i, signs)]; };
}
RUN(IQ2_XXS) {
  const uint8_t* sub = b + 2 + c / 32 * 8;
  unsigned run = c / 8 % 4, word = word_of_halves(sub + 4);
  float scale = f16_at(b) * 0.125f * odd(word >> 28);
  return eight_magnitudes(scale, IQ2_XXS_GRID[sub[run]], even_signs(word >> (7 * run)));
}
RUN(IQ2_XS) {
  unsigned run = half_at(b + 2 + c / 8 * 2);
  float scale = f16_at(b) * 0.125f * odd(nibble_at(b + 66, c / 16));
  return eight_magnitudes(scale, IQ2_XS_GRID[run & 511], even_signs(run >> 9));
}
RUN(IQ2_S) {
  unsigned run = c / 8, high = b[66 + run / 4] >> (run % 4 * 2) & 3;
  float scale = f16_at(b) * 0.125f * odd(nibble_at(b + 74, c / 16));
  return eight_magnitudes(scale, IQ2_S_GRID[b[2 + run] | high << 8], b[34 + run]);
}
RUN(IQ3_XXS) {
  unsigned word = word_of_halves(b + 66 + c / 32 * 4), signs = even_signs(word >> (c / 8 % 4 * 7));
  unsigned pair = half_at(b + 2 + c / 4), first = IQ3_XXS_GRID[pair & 255];
  unsigned second = IQ3_XXS_GRID[pair >> 8];
  float scale = f16_at(b) * 0.25f * odd(word >> 28);
  return [=](unsigned i) {
    unsigned code = of_four(i < 4 ? first : second, i % 4, signs >> (i & 4));
    return scale * (float)IQ3_XXS_VALUES[code];
  };
}
RUN(IQ3_S) {
  unsigned pair = half_at(b + 2 + c / 4), high = b[66 + c / 32] >> (c / 8 % 4 * 2);
  unsigned first = IQ3_S_GRID[(pair & 255) | (high & 1) << 8];
  unsigned second = IQ3_S_GRID[pair >> 8 | (high & 2) << 7], signs = b[74 + c / 8];
  float scale = f16_at(b) * odd(nibble_at(b + 106, c / 32));
  return [=](unsigned i) {
    unsigned code = of_four(i < 4 ? first : second, i % 4, signs >> (i & 4));
    return scale * (float)IQ3_S_VALUES[code];
  };
}
RUN(IQ4_XS) {
  unsigned s = c / 32, six = nibble_at(b + 4, s) | (half_at(b + 2) >> (2 * s) & 3) << 4;
  float scale = f16_at(b) * (float)((int)six - 32);
  uint64_t codes = nibbles_of_halves<8>(b + 8 + 16 * s, c % 32, 16);
  return [=](unsigned i) { return scale * (float)IQ4_NL_VALUES[byte_of(codes, i)]; };
}

// ---- codes in column order with f32 scales ------------------------------------------------------
DEV auto affine_of_4(const uint8_t* b, unsigned c) {
  float s = float_at(b), m = float_at(b + 4);
  uint32_t codes = stored<uint32_t>(b + 8 + c / 2);
  return [=](unsigned i) { return fmaf((float)nibble_of(codes, i), s, m); };
}
DEV auto affine_of_8(const uint8_t* b, unsigned c) {
  float s = float_at(b), m = float_at(b + 4);
  uint64_t codes = stored<uint64_t>(b + 8 + c);
  return [=](unsigned i) { return fmaf((float)byte_of(codes, i), s, m); };
}
DEV auto affine_of_2(const uint8_t* b, unsigned c) {
  float s = float_at(b), m = float_at(b + 4);
  unsigned codes = stored<uint16_t>(b + 8 + c / 4);
  return [=](unsigned i) { return fmaf((float)(codes >> (2 * i) & 3), s, m); };
}
// `block` weights, whose third bits lie after the others.
DEV auto affine_of_3(const uint8_t* b, unsigned c, unsigned block) {
  float s = float_at(b), m = float_at(b + 4);
  unsigned codes = stored<uint16_t>(b + 8 + c / 4), high = b[8 + block / 4 + c / 8];
  return [=](unsigned i) {
    return fmaf((float)((codes >> (2 * i) & 3) | (high >> i & 1) << 2), s, m);
  };
}
RUN(U2_32) { return affine_of_2(b, c); }
RUN(U2_64) { return affine_of_2(b, c); }
RUN(U2_128) { return affine_of_2(b, c); }
RUN(U3_32) { return affine_of_3(b, c, 32); }
RUN(U3_64) { return affine_of_3(b, c, 64); }
RUN(U3_128) { return affine_of_3(b, c, 128); }
RUN(U4_32) { return affine_of_4(b, c); }
RUN(U4_64) { return affine_of_4(b, c); }
RUN(U4_128) { return affine_of_4(b, c); }
RUN(U8_32) { return affine_of_8(b, c); }
RUN(U8_64) { return affine_of_8(b, c); }
RUN(U8_128) { return affine_of_8(b, c); }
RUN(FP4_F32) {
  float scale = float_at(b + c / 16 * 4);
  uint32_t codes = stored<uint32_t>(b + 8 + c / 2);
  return [=](unsigned i) { return (float)MXFP4_VALUES[nibble_of(codes, i)] * scale; };
}
RUN(E4M3_32) {
  float scale = float_at(b);
  uint64_t codes = eight_bytes<4>(b + 4 + c);
  return [=](unsigned i) { return from_e4m3(byte_of(codes, i)) * scale; };
}
RUN(NF4_64) {
  float scale = float_at(b);
  uint32_t codes = stored<uint32_t>(b + 4 + c / 2);
  return [=](unsigned i) { return float_of(NF4_VALUES[nibble_of(codes, i)]) * scale; };
}
RUN(FP4_64) {
  float scale = float_at(b);
  uint32_t codes = stored<uint32_t>(b + 4 + c / 2);
  return [=](unsigned i) { return float_of(FP4_VALUES[nibble_of(codes, i)]) * scale; };
}
#undef RUN

// ---- what kernels call --------------------------------------------------------------------------
// Number `col` of a stored row.
template <int F> DEV float weight_at(const uint8_t* row, unsigned col) {
  constexpr unsigned weights = Stored<F>::weights, bytes = Stored<F>::bytes;
  const uint8_t* block = row + (size_t)(col / weights) * bytes;
  if (weights == 1) return run_in(As<F>(), block, 0)(0);
  return run_in(As<F>(), block, col % weights / 8 * 8)(col % 8);
}
// Numbers 8·run … 8·run + 7 of a stored row that has them.
template <int F> DEV void eight_at(const uint8_t* row, unsigned run, float (&out)[8]) {
  constexpr unsigned weights = Stored<F>::weights, bytes = Stored<F>::bytes;
  const uint8_t* block = row + (size_t)(8 * run / weights) * bytes;
  constexpr bool is_float = F == F_F32 || F == F_F16 || F == F_BF16;
  if (is_float && (uintptr_t)block % 8 == 0) {
    uint64_t words[is_float ? bytes : 1];
    UNROLL for (unsigned i = 0; i < bytes; i++) words[i] = stored<uint64_t>(block + 8 * i);
    UNROLL for (unsigned i = 0; i < 8; i++) {
      uint32_t bits = (uint32_t)(words[i * bytes / 8] >> (i * bytes % 8 * 8));
      out[i] = F == F_F32 ? float_of(bits) : F == F_F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
    }
    return;
  }
  auto number = run_in(As<F>(), block, weights == 1 ? 0 : 8 * run % weights);
  UNROLL for (unsigned i = 0; i < 8; i++) out[i] = number(i);
}
