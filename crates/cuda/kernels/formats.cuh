// Numbers out of stored rows, for every format that has rows: `weight_at<F_Q4_K>(row, col)`.
//
// The same operations on the same f32 as `decode` of crates/quant, which defines each format, so
// that the bits are the same; what is below is its text for one column.
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

// ---- codes --------------------------------------------------------------------------------------
// Low nibbles of n bytes are columns 0 … n − 1, high nibbles the next n.
DEV unsigned nibble_of_halves(const uint8_t* codes, unsigned c, unsigned n) {
  return codes[c % n] >> (c / n * 4) & 15;
}
// The even column in the low nibble.
DEV unsigned nibble_of_pairs(const uint8_t* codes, unsigned c) {
  return codes[c / 2] >> (c % 2 * 4) & 15;
}
// Bit i of a row of bytes.
DEV unsigned bit_at(const uint8_t* bytes, unsigned i) { return bytes[i / 8] >> (i % 8) & 1; }
// 2-bit codes of 32 columns at a time, four times in 32 bytes.
DEV unsigned two_bits(const uint8_t* codes, unsigned c) {
  return codes[c / 128 * 32 + c % 32] >> (c / 32 % 4 * 2) & 3;
}

// One row's block of a format, `b`, and a column in it, `c`.
template <int F> struct As {};
#define FORMAT(NAME) DEV float number_in(As<F_##NAME>, const uint8_t* b, unsigned c)

// ---- plain numbers ------------------------------------------------------------------------------
FORMAT(F32) { return float_at(b); }
FORMAT(F16) { return f16_at(b); }
FORMAT(BF16) { return bf16_to_f32(stored<uint16_t>(b)); }
FORMAT(U8) { return (float)b[0]; }
FORMAT(I8) { return (float)(int8_t)b[0]; }
FORMAT(I16) { return (float)stored<int16_t>(b); }
FORMAT(I32) { return (float)stored<int32_t>(b); }
FORMAT(I64) { return (float)stored<int64_t>(b); }
FORMAT(F64) { return (float)stored<double>(b); }
FORMAT(F8_E4M3) { return (b[0] & 0x7f) == 0x7f ? float_of(0x7fc00000u) : from_e4m3(b[0]); }
FORMAT(F8_E5M2) { return f16_to_f32((uint16_t)(b[0] << 8)); }

// ---- blocks of 32 -------------------------------------------------------------------------------
DEV unsigned five_bits(const uint8_t* bits, unsigned c) {
  return nibble_of_halves(bits + 4, c, 16) | bit_at(bits, c) << 4;
}
DEV float scaled_and_min(const uint8_t* b, unsigned code) {
  return add_rn(f16_at(b) * (float)code, f16_at(b + 2));
}
FORMAT(Q8_0) { return (float)(int8_t)b[2 + c] * f16_at(b); }
FORMAT(Q4_0) { return f16_at(b) * ((float)nibble_of_halves(b + 2, c, 16) - 8.f); }
FORMAT(Q4_1) { return scaled_and_min(b, nibble_of_halves(b + 4, c, 16)); }
FORMAT(Q5_0) { return f16_at(b) * ((float)five_bits(b + 2, c) - 16.f); }
FORMAT(Q5_1) { return scaled_and_min(b, five_bits(b + 4, c)); }
FORMAT(IQ4_NL) { return f16_at(b) * (float)IQ4_NL_VALUES[nibble_of_halves(b + 2, c, 16)]; }
FORMAT(MXFP4) { return half_of_e8m0(b[0]) * (float)MXFP4_VALUES[nibble_of_halves(b + 1, c, 16)]; }
FORMAT(NVFP4) {
  unsigned sub = c / 16;
  return half_of_ue4m3(b[sub]) * (float)MXFP4_VALUES[nibble_of_halves(b + 4 + 8 * sub, c % 16, 8)];
}

// ---- superblocks of 256 with codes --------------------------------------------------------------
// The 6-bit scale or minimum of 32 columns in the 12 bytes of q4_k and q5_k.
DEV float scale_of_32(const uint8_t* scales, unsigned s) {
  return (float)(s < 4 ? scales[s] & 63 : (scales[s + 4] & 15) | scales[s - 4] >> 6 << 4);
}
DEV float min_of_32(const uint8_t* scales, unsigned s) {
  return (float)(s < 4 ? scales[s + 4] & 63 : scales[s + 4] >> 4 | scales[s] >> 6 << 4);
}
DEV float scaled_less_min(const uint8_t* b, unsigned s, unsigned code) {
  float scale = f16_at(b) * scale_of_32(b + 4, s), min = f16_at(b + 2) * min_of_32(b + 4, s);
  return sub_rn(scale * (float)code, min);
}
FORMAT(Q4_K) {
  return scaled_less_min(b, c / 32, nibble_of_halves(b + 16 + c / 64 * 32, c % 64, 32));
}
FORMAT(Q5_K) {
  unsigned low = nibble_of_halves(b + 48 + c / 64 * 32, c % 64, 32);
  return scaled_less_min(b, c / 32, low | (b[16 + c % 32] >> (c / 32) & 1) << 4);
}
FORMAT(Q6_K) {
  unsigned half = c / 128, group = c / 32 % 4, i = c % 32;
  unsigned low = b[64 * half + 32 * (group % 2) + i] >> (group / 2 * 4) & 15;
  unsigned high = b[128 + 32 * half + i] >> (2 * group) & 3;
  return f16_at(b + 208) * (float)(int8_t)b[192 + c / 16] * ((float)(low | high << 4) - 32.f);
}
FORMAT(Q2_K) {
  unsigned s = b[c / 16];
  float scale = f16_at(b + 80) * (float)(s & 15), min = f16_at(b + 82) * (float)(s >> 4);
  return sub_rn(scale * (float)two_bits(b + 16, c), min);
}
FORMAT(Q3_K) {
  unsigned s = c / 16;
  unsigned low = b[96 + s % 8] >> (s / 8 * 4) & 15, high = b[104 + s % 4] >> (s / 4 * 2) & 3;
  float scale = f16_at(b + 108) * (float)((int)(low | high << 4) - 32);
  unsigned code = two_bits(b + 32, c) | (b[c % 32] >> (c / 32) & 1) << 2;
  return scale * ((float)code - 4.f);
}
FORMAT(TQ2_0) { return f16_at(b + 64) * ((float)two_bits(b, c) - 1.f); }
// Five digits to base 3 in a byte: 32 bytes for 160 columns, 16 for 80, and 4 bytes of four digits.
FORMAT(TQ1_0) {
  unsigned first = c < 160 ? 0 : c < 240 ? 160 : 240, n = c < 160 ? 32 : c < 240 ? 16 : 4;
  unsigned byte = b[(c < 160 ? 0 : c < 240 ? 32 : 48) + (c - first) % n];
  for (unsigned i = (c - first) / n; i; i--) byte = byte * 3 & 255;
  return f16_at(b + 52) * ((float)(byte * 3 >> 8) - 1.f);
}

// ---- superblocks of 256 with code books ---------------------------------------------------------
// (unit · scale) · value; scales are odd numbers kept as their halves but in iq4_xs.
DEV float coded(float unit, int scale, int value) { return unit * (float)scale * (float)value; }
// The column of a run of eight in an entry of 2-bit indices, negative where `minus`.
DEV unsigned of_eight(unsigned entry, unsigned i, unsigned minus) {
  return (entry >> (2 * i) & 3) | minus << 3;
}
// The same in a run of four of 3-bit indices.
DEV unsigned of_four(unsigned entry, unsigned i, unsigned minus) {
  return (entry >> (3 * i) & 7) | minus << 3;
}
// Sign i of the eight behind a 7-bit index: the eighth makes their number even.
DEV unsigned even_sign(unsigned index, unsigned i) {
  unsigned low = index & 127, parity = low ^ low >> 4;
  parity ^= parity >> 2;
  return (low | ((parity ^ parity >> 1) & 1) << 7) >> i & 1;
}
DEV unsigned word_of_halves(const uint8_t* at) { return half_at(at) | half_at(at + 2) << 16; }

FORMAT(IQ1_S) {
  unsigned run = c / 8, high = half_at(b + 34 + c / 32 * 2);
  unsigned entry = IQ1_S_GRID[b[2 + run] | (high >> (run % 4 * 3) & 7) << 8];
  unsigned code = of_eight(entry, c % 8, high >> 15);
  return coded(f16_at(b) * 0.125f, 2 * (high >> 12 & 7) + 1, IQ1_VALUES[code]);
}
FORMAT(IQ1_M) {
  const uint8_t* scales = b + 48;
  unsigned d = 0;
  for (unsigned i = 0; i < 4; i++) d |= half_at(scales + 2 * i) >> 12 << (4 * i);
  unsigned run = c / 8, nibble = nibble_of_pairs(b + 32, run), s = c / 16;
  unsigned entry = IQ1_S_GRID[b[run] | (nibble & 7) << 8];
  int scale = 2 * (half_at(scales + s / 4 * 2) >> (s % 4 * 3) & 7) + 1;
  return coded(f16_to_f32((uint16_t)d) * 0.125f, scale, IQ1_VALUES[of_eight(entry, c % 8, nibble >> 3)]);
}
FORMAT(IQ2_XXS) {
  const uint8_t* sub = b + 2 + c / 32 * 8;
  unsigned run = c / 8 % 4, signs = word_of_halves(sub + 4);
  unsigned code = of_eight(IQ2_XXS_GRID[sub[run]], c % 8, even_sign(signs >> (7 * run), c % 8));
  return coded(f16_at(b) * 0.125f, 2 * (signs >> 28) + 1, IQ2_VALUES[code]);
}
FORMAT(IQ2_XS) {
  unsigned run = half_at(b + 2 + c / 8 * 2);
  unsigned code = of_eight(IQ2_XS_GRID[run & 511], c % 8, even_sign(run >> 9, c % 8));
  return coded(f16_at(b) * 0.125f, 2 * nibble_of_pairs(b + 66, c / 16) + 1, IQ2_VALUES[code]);
}
FORMAT(IQ2_S) {
  unsigned run = c / 8, high = b[66 + run / 4] >> (run % 4 * 2) & 3;
  unsigned code = of_eight(IQ2_S_GRID[b[2 + run] | high << 8], c % 8, bit_at(b + 34, c));
  return coded(f16_at(b) * 0.125f, 2 * nibble_of_pairs(b + 74, c / 16) + 1, IQ2_VALUES[code]);
}
FORMAT(IQ3_XXS) {
  unsigned word = word_of_halves(b + 66 + c / 32 * 4);
  unsigned minus = even_sign(word >> (c / 8 % 4 * 7), c % 8);
  unsigned code = of_four(IQ3_XXS_GRID[b[2 + c / 4]], c % 4, minus);
  return coded(f16_at(b) * 0.25f, 2 * (word >> 28) + 1, IQ3_XXS_VALUES[code]);
}
FORMAT(IQ3_S) {
  unsigned run = c / 4, entry = IQ3_S_GRID[b[2 + run] | bit_at(b + 66, run) << 8];
  unsigned code = of_four(entry, c % 4, bit_at(b + 74, c));
  return coded(f16_at(b), 2 * nibble_of_pairs(b + 106, c / 32) + 1, IQ3_S_VALUES[code]);
}
FORMAT(IQ4_XS) {
  unsigned s = c / 32, scale = nibble_of_pairs(b + 4, s) | (half_at(b + 2) >> (2 * s) & 3) << 4;
  unsigned code = nibble_of_halves(b + 8 + 16 * s, c % 32, 16);
  return coded(f16_at(b), (int)scale - 32, IQ4_NL_VALUES[code]);
}

// ---- codes in column order with f32 scales ------------------------------------------------------
DEV float affine(const uint8_t* b, unsigned code) {
  return fmaf((float)code, float_at(b), float_at(b + 4));
}
FORMAT(U4_32) { return affine(b, nibble_of_pairs(b + 8, c)); }
FORMAT(U4_64) { return affine(b, nibble_of_pairs(b + 8, c)); }
FORMAT(U4_128) { return affine(b, nibble_of_pairs(b + 8, c)); }
FORMAT(U8_32) { return affine(b, b[8 + c]); }
FORMAT(U8_64) { return affine(b, b[8 + c]); }
FORMAT(U8_128) { return affine(b, b[8 + c]); }
FORMAT(FP4_F32) {
  return (float)MXFP4_VALUES[nibble_of_pairs(b + 8, c)] * float_at(b + c / 16 * 4);
}
FORMAT(E4M3_32) { return from_e4m3(b[4 + c]) * float_at(b); }
FORMAT(NF4_64) { return float_of(NF4_VALUES[nibble_of_pairs(b + 4, c)]) * float_at(b); }
FORMAT(FP4_64) { return float_of(FP4_VALUES[nibble_of_pairs(b + 4, c)]) * float_at(b); }
#undef FORMAT

// Number `col` of a stored row.
template <int F> DEV float weight_at(const uint8_t* row, unsigned col) {
  constexpr unsigned weights = Stored<F>::weights, bytes = Stored<F>::bytes;
  return number_in(As<F>(), row + (size_t)(col / weights) * bytes, col % weights);
}
