// Weights as atoms of 512 bytes: what a warp reads with one load of 16 bytes a lane is the matrix a of `mma`, 16 rows by 16 (bf16),
// 32 (bytes) or 64 (nibbles) columns. In a block of 32 columns lane 4g + t has of rows g and g + 8 the columns 8t … 8t + 7: step j of
// two takes 4j … 4j + 3 of them, half h of a step two of these, e one. So x is read as it lies: eight columns a lane are b of two
// steps.
//
// A strip is 16 rows: its units of UNIT columns lie one after another, rows and columns that are none being zeros. Behind all strips
// come the scales, SCALES bytes a strip and unit.
#pragma once
#include "formats.cuh"
#include "numbers.cuh"

#ifdef TOKENMILL_HOST
// (Where threads are fibers it gains nothing, and a compiler is four times as long at it.)
#undef UNROLL
#define UNROLL
#endif

// What stands in an atom.
enum { BF16_ATOM, BYTE_ATOM, NIBBLE_ATOM };

// Bytes of scales of a unit; where they are.
template <int F> struct Atoms;

template <int F> DEV unsigned units_of(unsigned cols) { return (cols + Atoms<F>::UNIT - 1) / Atoms<F>::UNIT; }
template <int F> DEV size_t unit_bytes() { return (size_t)Atoms<F>::QUADS * 512; }
// Where the scales of a part's atoms begin.
template <int F> DEV size_t atoms_bytes(unsigned rows, unsigned cols) {
  return (size_t)((rows + 15) / 16) * units_of<F>(cols) * unit_bytes<F>();
}

DEV uint32_t word_at(const Quad* quads, unsigned i) { return quads[i / 4].w[i % 4]; }
DEV float half_at(const Quad* quads, unsigned i) { return f16_to_f32((uint16_t)(word_at(quads, i / 2) >> (i % 2 * 16))); }
DEV unsigned byte_at(const Quad* quads, unsigned i) { return word_at(quads, i / 4) >> (i % 4 * 8) & 255; }

// ---- x ------------------------------------------------------------------------------------------
// Of 32 columns what a lane holds of N groups of eight rows.
template <int N> struct Columns {
  float v[N][8];
};
// As b of two steps.
template <int N> struct Steps {
  uint32_t b[N][4];
};

// Columns k … k + 7 of rows at multiples of 16 bytes. From column `cols` on, a multiple of 8, where weights are zeros, any others.
template <int N> DEV Columns<N> columns_of(const float* const (&x)[N], unsigned k, unsigned cols) {
  Columns<N> c;
  k = k < cols ? k : 0;
  UNROLL for (int n = 0; n < N; n++) {
    Quad quads[2] = {load_here(x[n] + k), load_here(x[n] + k + 4)};
    UNROLL for (int i = 0; i < 8; i++) c.v[n][i] = float_of(quads[i / 4].w[i % 4]);
  }
  return c;
}
template <int N> DEV Steps<N> steps_of(const Columns<N>& c) {
  Steps<N> s;
  UNROLL for (int n = 0; n < N; n++)
    UNROLL for (int i = 0; i < 4; i++) s.b[n][i] = pair_of(c.v[n][2 * i], c.v[n][2 * i + 1]);
  return s;
}

// ---- sums ---------------------------------------------------------------------------------------
template <int N> DEV void two_steps(float (&c)[N][4], const uint32_t (&a)[8], const Steps<N>& x) {
  UNROLL for (int n = 0; n < N; n++) mma(c[n], a[0], a[1], a[2], a[3], x.b[n][0], x.b[n][1]);
  UNROLL for (int n = 0; n < N; n++) mma(c[n], a[4], a[5], a[6], a[7], x.b[n][2], x.b[n][3]);
}
template <int N> DEV void two_fresh(float (&c)[N][4], const uint32_t (&a)[8], const Steps<N>& x) {
  UNROLL for (int n = 0; n < N; n++) mma_fresh(c[n], a[0], a[1], a[2], a[3], x.b[n][0], x.b[n][1]);
  UNROLL for (int n = 0; n < N; n++) mma(c[n], a[4], a[5], a[6], a[7], x.b[n][2], x.b[n][3]);
}
// Sums of x, the same in every row: a is ones.
template <int N> DEV void ones(float (&c)[N][4], const Steps<N>& x, bool is_fresh) {
  const uint32_t one = 0x3f803f80u;
  UNROLL for (int n = 0; n < N; n++) {
    if (is_fresh) mma_fresh(c[n], one, one, one, one, x.b[n][0], x.b[n][1]);
    else mma(c[n], one, one, one, one, x.b[n][0], x.b[n][1]);
    mma(c[n], one, one, one, one, x.b[n][2], x.b[n][3]);
  }
}
// c + s · d, row by row.
template <int N> DEV void add_scaled(float (&c)[N][4], const float (&d)[N][4], float s0, float s1) {
  UNROLL for (int n = 0; n < N; n++) {
    c[n][0] = fmaf(s0, d[n][0], c[n][0]);
    c[n][1] = fmaf(s0, d[n][1], c[n][1]);
    c[n][2] = fmaf(s1, d[n][2], c[n][2]);
    c[n][3] = fmaf(s1, d[n][3], c[n][3]);
  }
}

// What a warp sums of a strip: the result, and sums of a group of columns before their scale.
template <int N> struct Sums {
  float all[N][4], group[N][4];
};
// Sums of x of a group, which all strips share.
template <int N> struct Ones {
  float v[N][4];
};

// ---- codes --------------------------------------------------------------------------------------
// Signed bytes 0 and 2 as bf16, exact: 128 + the low seven bits, less 128 or 256.
DEV uint32_t signed_pair(uint32_t c) {
  return sub_pairs(and_or(c, 0x007f007fu, 0x43004300u), and_or(c, 0x00800080u, 0x43004300u));
}
// e4m3 in bytes 0 and 2, exact: exponent and mantissa in their places, times 2^120.
DEV uint32_t e4m3_pair(uint32_t c) { return mul_pairs(and_or(c << 8, 0x80008000u, (c << 4) & 0x07f007f0u), 0x7b807b80u); }

template <uint32_t (*PAIR)(uint32_t)> DEV void byte_steps(uint32_t (&a)[8], const Quad& q) {
  UNROLL for (int j = 0; j < 2; j++) {
    a[4 * j] = PAIR(q.w[2 * j]), a[4 * j + 1] = PAIR(q.w[2 * j + 1]);
    a[4 * j + 2] = PAIR(q.w[2 * j] >> 8), a[4 * j + 3] = PAIR(q.w[2 * j + 1] >> 8);
  }
}
// 128 + a nibble, exact.
DEV void nibble_steps(uint32_t (&a)[8], const Quad& q, int block) {
  UNROLL for (int i = 0; i < 4; i++) {
    a[2 * i] = and_or(q.w[2 * block] >> (4 * i), 0x000f000fu, 0x43004300u);
    a[2 * i + 1] = and_or(q.w[2 * block + 1] >> (4 * i), 0x000f000fu, 0x43004300u);
  }
}

// ---- formats ------------------------------------------------------------------------------------
// Of each: KIND, UNIT, QUADS (atoms a unit), SCALES (bytes a unit and strip), HELD (quads of scales that a lane holds of a unit);
// `hold` loads these; `block` adds block b of a unit to the sums, and
// of the first strip's to sums of x. For packing: `codes` of eight columns, `put_scales` by a thread a
// row; for looking up, `number` of a code.
template <int F> struct Unit {
  Quad w[Atoms<F>::QUADS];
  Quad s[Atoms<F>::HELD ? Atoms<F>::HELD : 1];
};

template <> struct Atoms<F_BF16> {
  static constexpr int KIND = BF16_ATOM, UNIT = 128, QUADS = 8, SCALES = 0, HELD = 0, TOGETHER = 3;
  static constexpr bool IS_EARLY = false;
  static DEV_IN void hold(Quad*, const uint8_t*, unsigned) {}
  template <int N> static DEV_IN void block(const Unit<F_BF16>& u, int b, const Steps<N>& x, Sums<N>& s, Ones<N>& o, bool is_first) {
    const Quad &p = u.w[2 * b], &q = u.w[2 * b + 1];
    uint32_t a[8] = {p.w[0], p.w[1], p.w[2], p.w[3], q.w[0], q.w[1], q.w[2], q.w[3]};
    two_steps<N>(s.all, a, x);
  }
  static DEV_IN void put_scales(const uint8_t*, uint8_t*, unsigned, unsigned, unsigned) {}
  static DEV_IN float number(const uint8_t*, unsigned, unsigned, uint32_t code) { return bf16_to_f32((uint16_t)code); }
};

// An f16 for 32 columns: [g][8 blocks][2 rows].
DEV float half_scale(const uint8_t* scales, unsigned row, unsigned block) {
  return load_f16(scales + (row % 8 * 16 + block * 2 + row / 8) * 2);
}
DEV void put_half(uint8_t* scales, unsigned row, unsigned block, unsigned bits) {
  reinterpret_cast<uint16_t*>(scales)[row % 8 * 16 + block * 2 + row / 8] = (uint16_t)bits;
}

template <> struct Atoms<F_Q8_0> {
  static constexpr int KIND = BYTE_ATOM, UNIT = 256, QUADS = 8, SCALES = 256, HELD = 2, TOGETHER = 3;
  static constexpr bool IS_EARLY = true;
  static DEV_IN void hold(Quad* s, const uint8_t* scales, unsigned g) {
    UNROLL for (int i = 0; i < HELD; i++) s[i] = load_once(scales + g * 32 + i * 16);
  }
  template <int N> static DEV_IN void block(const Unit<F_Q8_0>& u, int b, const Steps<N>& x, Sums<N>& s, Ones<N>& o, bool is_first) {
    uint32_t a[8];
    byte_steps<signed_pair>(a, u.w[b]);
    two_fresh<N>(s.group, a, x);
    add_scaled<N>(s.all, s.group, half_at(u.s, 2 * b), half_at(u.s, 2 * b + 1));
  }
  static DEV_IN uint64_t codes(const uint8_t* b, unsigned c) { return eight_bytes<2>(b + 2 + c); }
  static DEV_IN void put_scales(const uint8_t* row, uint8_t* to, unsigned at, unsigned first, unsigned cols) {
    for (unsigned b = 0; b < 8 && first + 32 * b < cols; b++) put_half(to, at, b, half_at(row + (first / 32 + b) * 34));
  }
  static DEV_IN float number(const uint8_t* scales, unsigned row, unsigned c, uint32_t code) {
    return (float)(int8_t)code * half_scale(scales, row, c / 32);
  }
};

template <> struct Atoms<F_Q4_0> {
  static constexpr int KIND = NIBBLE_ATOM, UNIT = 256, QUADS = 4, SCALES = 256, HELD = 2, TOGETHER = 3;
  static constexpr bool IS_EARLY = false;
  static DEV_IN void hold(Quad* s, const uint8_t* scales, unsigned g) {
    UNROLL for (int i = 0; i < HELD; i++) s[i] = load_once(scales + g * 32 + i * 16);
  }
  template <int N> static DEV_IN void block(const Unit<F_Q4_0>& u, int b, const Steps<N>& x, Sums<N>& s, Ones<N>& o, bool is_first) {
    uint32_t a[8];
    nibble_steps(a, u.w[b / 2], b % 2);
    two_fresh<N>(s.group, a, x);
    if (is_first) ones<N>(o.v, x, true);
    float d0 = half_at(u.s, 2 * b), d1 = half_at(u.s, 2 * b + 1);
    add_scaled<N>(s.all, s.group, d0, d1);
    add_scaled<N>(s.all, o.v, -136.f * d0, -136.f * d1);
  }
  static DEV_IN uint64_t codes(const uint8_t* b, unsigned c) { return nibbles_of_halves<2>(b + 2, c, 16); }
  static DEV_IN void put_scales(const uint8_t* row, uint8_t* to, unsigned at, unsigned first, unsigned cols) {
    for (unsigned b = 0; b < 8 && first + 32 * b < cols; b++) put_half(to, at, b, half_at(row + (first / 32 + b) * 18));
  }
  static DEV_IN float number(const uint8_t* scales, unsigned row, unsigned c, uint32_t code) {
    return half_scale(scales, row, c / 32) * ((float)code - 8.f);
  }
};

// Two f16 for 32 columns, what a code is times and what is added: [g][8 blocks][2 rows][2].
template <> struct Atoms<F_Q4_1> {
  static constexpr int KIND = NIBBLE_ATOM, UNIT = 256, QUADS = 4, SCALES = 512, HELD = 4, TOGETHER = 2;
  static constexpr bool IS_EARLY = false;
  static DEV_IN void hold(Quad* s, const uint8_t* scales, unsigned g) {
    UNROLL for (int i = 0; i < HELD; i++) s[i] = load_once(scales + g * 64 + i * 16);
  }
  template <int N> static DEV_IN void block(const Unit<F_Q4_1>& u, int b, const Steps<N>& x, Sums<N>& s, Ones<N>& o, bool is_first) {
    uint32_t a[8];
    nibble_steps(a, u.w[b / 2], b % 2);
    two_fresh<N>(s.group, a, x);
    if (is_first) ones<N>(o.v, x, true);
    float d0 = half_at(u.s, 4 * b), m0 = half_at(u.s, 4 * b + 1), d1 = half_at(u.s, 4 * b + 2), m1 = half_at(u.s, 4 * b + 3);
    add_scaled<N>(s.all, s.group, d0, d1);
    add_scaled<N>(s.all, o.v, fmaf(-128.f, d0, m0), fmaf(-128.f, d1, m1));
  }
  static DEV_IN uint64_t codes(const uint8_t* b, unsigned c) { return nibbles_of_halves<4>(b + 4, c, 16); }
  static DEV_IN void put_scales(const uint8_t* row, uint8_t* to, unsigned at, unsigned first, unsigned cols) {
    uint32_t* pairs = reinterpret_cast<uint32_t*>(to) + at % 8 * 16 + at / 8;
    for (unsigned b = 0; b < 8 && first + 32 * b < cols; b++) pairs[2 * b] = stored<uint32_t>(row + (first / 32 + b) * 20);
  }
  static DEV_IN float number(const uint8_t* scales, unsigned row, unsigned c, uint32_t code) {
    const uint8_t* pair = scales + (row % 8 * 16 + c / 32 * 2 + row / 8) * 4;
    return add_rn(load_f16(pair) * (float)code, load_f16(pair + 2));
  }
};

// Two f16 for 256 columns, [g][2 rows](d, dmin), then two bytes for 32, [g][2 rows][8 blocks](scale, minimum).
template <> struct Atoms<F_Q4_K> {
  static constexpr int KIND = NIBBLE_ATOM, UNIT = 256, QUADS = 4, SCALES = 320, HELD = 3, TOGETHER = 3;
  static constexpr bool IS_EARLY = true;
  static DEV_IN void hold(Quad* s, const uint8_t* scales, unsigned g) {
    const uint8_t* pairs = scales + g * 8;
    s[0].w[0] = *reinterpret_cast<const uint32_t*>(pairs), s[0].w[1] = *reinterpret_cast<const uint32_t*>(pairs + 4);
    UNROLL for (int i = 0; i < 2; i++) s[1 + i] = load_once(scales + 64 + g * 32 + i * 16);
  }
  template <int N> static DEV_IN void block(const Unit<F_Q4_K>& u, int b, const Steps<N>& x, Sums<N>& s, Ones<N>& o, bool is_first) {
    uint32_t a[8];
    nibble_steps(a, u.w[b / 2], b % 2);
    two_fresh<N>(s.group, a, x);
    if (is_first) ones<N>(o.v, x, true);
    float d0 = half_at(u.s, 0) * (float)byte_at(u.s + 1, 2 * b), d1 = half_at(u.s, 2) * (float)byte_at(u.s + 2, 2 * b);
    float m0 = half_at(u.s, 1) * (float)byte_at(u.s + 1, 2 * b + 1), m1 = half_at(u.s, 3) * (float)byte_at(u.s + 2, 2 * b + 1);
    add_scaled<N>(s.all, s.group, d0, d1);
    add_scaled<N>(s.all, o.v, fmaf(-128.f, d0, -m0), fmaf(-128.f, d1, -m1));
  }
  static DEV_IN uint64_t codes(const uint8_t* b, unsigned c) {
    return nibbles_of_halves<8>(b + 16 + c / 64 * 32, c % 64, 32);
  }
  static DEV_IN void put_scales(const uint8_t* row, uint8_t* to, unsigned at, unsigned first, unsigned cols) {
    if (first >= cols) return;
    const uint8_t* b = row + first / 256 * 144;
    reinterpret_cast<uint32_t*>(to)[at % 8 * 2 + at / 8] = stored<uint32_t>(b);
    uint8_t* bytes = to + 64 + (at % 8 * 2 + at / 8) * 16;
    for (unsigned i = 0; i < 8; i++) bytes[2 * i] = (uint8_t)scale_of_32(b + 4, i), bytes[2 * i + 1] = (uint8_t)min_of_32(b + 4, i);
  }
  static DEV_IN float number(const uint8_t* scales, unsigned row, unsigned c, uint32_t code) {
    const uint8_t *pair = scales + (row % 8 * 2 + row / 8) * 4, *bytes = scales + 64 + (row % 8 * 2 + row / 8) * 16 + c / 32 * 2;
    float scale = load_f16(pair) * (float)bytes[0], min = load_f16(pair + 2) * (float)bytes[1];
    return sub_rn(scale * (float)code, min);
  }
};

// An f16 for 256 columns, [g][2 rows], then a signed byte for 16, [g][2 rows][16]. Codes are bytes here, less 32: they take more
// room than in files, and fewer instructions than six bits would.
template <> struct Atoms<F_Q6_K> {
  static constexpr int KIND = BYTE_ATOM, UNIT = 256, QUADS = 8, SCALES = 288, HELD = 3, TOGETHER = 2;
  static constexpr bool IS_EARLY = false;
  static DEV_IN void hold(Quad* s, const uint8_t* scales, unsigned g) {
    s[0].w[0] = *reinterpret_cast<const uint32_t*>(scales + g * 4);
    UNROLL for (int i = 0; i < 2; i++) s[1 + i] = load_once(scales + 32 + g * 32 + i * 16);
  }
  template <int N>
  static DEV_IN void block(const Unit<F_Q6_K>& u, int b, const Steps<N>& x, Sums<N>& s, Ones<N>&, bool) {
    uint32_t a[8];
    byte_steps<signed_pair>(a, u.w[b]);
    // The first 16 columns are those of lanes t = 0 and 1.
    UNROLL for (unsigned half = 0; half < 2; half++) {
      uint32_t mask = lane() % 4 / 2 == half ? ~0u : 0u;
      Steps<N> own;
      UNROLL for (int n = 0; n < N; n++)
        UNROLL for (int i = 0; i < 4; i++) own.b[n][i] = x.b[n][i] & mask;
      two_fresh<N>(s.group, a, own);
      float d0 = half_at(u.s, 0) * (float)(int8_t)byte_at(u.s + 1, 2 * b + half);
      float d1 = half_at(u.s, 1) * (float)(int8_t)byte_at(u.s + 2, 2 * b + half);
      add_scaled<N>(s.all, s.group, d0, d1);
    }
  }
  static DEV_IN uint64_t codes(const uint8_t* b, unsigned c) {
    unsigned half = c / 128, group = c / 32 % 4, in = c % 32;
    uint64_t low = eight_bytes<2>(b + 64 * half + 32 * (group % 2) + in) >> (group / 2 * 4);
    uint64_t high = eight_bytes<2>(b + 128 + 32 * half + in) >> (2 * group);
    uint64_t codes = (low & in_each(15)) | (high & in_each(3)) << 4, signed_codes = 0;
    for (unsigned i = 0; i < 8; i++) signed_codes |= (uint64_t)((byte_of(codes, i) - 32) & 255) << (8 * i);
    return signed_codes;
  }
  static DEV_IN void put_scales(const uint8_t* row, uint8_t* to, unsigned at, unsigned first, unsigned cols) {
    if (first >= cols) return;
    const uint8_t* b = row + first / 256 * 210;
    reinterpret_cast<uint16_t*>(to)[at % 8 * 2 + at / 8] = (uint16_t)half_at(b + 208);
    for (unsigned i = 0; i < 16; i++) to[32 + (at % 8 * 2 + at / 8) * 16 + i] = b[192 + i];
  }
  static DEV_IN float number(const uint8_t* scales, unsigned row, unsigned c, uint32_t code) {
    unsigned own = row % 8 * 2 + row / 8;
    return load_f16(scales + own * 2) * (float)(int8_t)scales[32 + own * 16 + c / 16] * (float)(int8_t)code;
  }
};

// Two f32 for a group of columns, what a code is times and what is added: [g][groups][2 rows][2].
template <int F, int GROUP> struct Affine {
  static constexpr int KIND = NIBBLE_ATOM, UNIT = 256, QUADS = 4, GROUPS = UNIT / GROUP, SCALES = 128 * GROUPS, HELD = GROUPS, TOGETHER = GROUPS > 2 ? 2 : 3;
  static constexpr bool IS_EARLY = false;
  static DEV_IN void hold(Quad* s, const uint8_t* scales, unsigned g) {
    UNROLL for (int i = 0; i < HELD; i++) s[i] = load_once(scales + (g * GROUPS + i) * 16);
  }
  template <int N> static DEV_IN void block(const Unit<F>& u, int b, const Steps<N>& x, Sums<N>& s, Ones<N>& o, bool is_first) {
    constexpr int BLOCKS = GROUP / 32;
    uint32_t a[8];
    nibble_steps(a, u.w[b / 2], b % 2);
    if (b % BLOCKS == 0) two_fresh<N>(s.group, a, x);
    else two_steps<N>(s.group, a, x);
    if (is_first) ones<N>(o.v, x, b % BLOCKS == 0);
    if (b % BLOCKS < BLOCKS - 1) return;
    const Quad& q = u.s[b / BLOCKS];
    float d0 = float_of(q.w[0]), m0 = float_of(q.w[1]), d1 = float_of(q.w[2]), m1 = float_of(q.w[3]);
    add_scaled<N>(s.all, s.group, d0, d1);
    add_scaled<N>(s.all, o.v, fmaf(-128.f, d0, m0), fmaf(-128.f, d1, m1));
  }
  static DEV_IN uint64_t codes(const uint8_t* b, unsigned c) {
    uint32_t word = stored<uint32_t>(b + 8 + c / 2);
    uint64_t bytes = 0;
    for (unsigned i = 0; i < 8; i++) bytes |= (uint64_t)nibble_of(word, i) << (8 * i);
    return bytes;
  }
  static DEV_IN void put_scales(const uint8_t* row, uint8_t* to, unsigned at, unsigned first, unsigned cols) {
    uint32_t* pairs = reinterpret_cast<uint32_t*>(to);
    for (unsigned i = 0; i < (unsigned)GROUPS && first + GROUP * i < cols; i++) {
      const uint8_t* b = row + (first / GROUP + i) * (8 + GROUP / 2);
      for (unsigned k = 0; k < 2; k++) pairs[((at % 8 * GROUPS + i) * 2 + at / 8) * 2 + k] = stored<uint32_t>(b + 4 * k);
    }
  }
  static DEV_IN float number(const uint8_t* scales, unsigned row, unsigned c, uint32_t code) {
    const uint8_t* pair = scales + ((row % 8 * GROUPS + c / GROUP) * 2 + row / 8) * 8;
    return fmaf((float)code, load_f32(pair), load_f32(pair + 4));
  }
};
template <> struct Atoms<F_U4_32> : Affine<F_U4_32, 32> {};
template <> struct Atoms<F_U4_64> : Affine<F_U4_64, 64> {};
template <> struct Atoms<F_U4_128> : Affine<F_U4_128, 128> {};

// (No weight is no number: the codes of NaN are ±480 here.)
template <> struct Atoms<F_F8_E4M3> {
  static constexpr int KIND = BYTE_ATOM, UNIT = 256, QUADS = 8, SCALES = 0, HELD = 0, TOGETHER = 3;
  static constexpr bool IS_EARLY = false;
  static DEV_IN void hold(Quad*, const uint8_t*, unsigned) {}
  template <int N> static DEV_IN void block(const Unit<F_F8_E4M3>& u, int b, const Steps<N>& x, Sums<N>& s, Ones<N>& o, bool is_first) {
    uint32_t a[8];
    byte_steps<e4m3_pair>(a, u.w[b]);
    two_steps<N>(s.all, a, x);
  }
  static DEV_IN void put_scales(const uint8_t*, uint8_t*, unsigned, unsigned, unsigned) {}
  static DEV_IN float number(const uint8_t*, unsigned, unsigned, uint32_t code) { return from_e4m3(code); }
};

// An f32 for 32 columns: [g][8 blocks][2 rows].
template <> struct Atoms<F_E4M3_32> {
  static constexpr int KIND = BYTE_ATOM, UNIT = 256, QUADS = 8, SCALES = 512, HELD = 4, TOGETHER = 2;
  static constexpr bool IS_EARLY = false;
  static DEV_IN void hold(Quad* s, const uint8_t* scales, unsigned g) {
    UNROLL for (int i = 0; i < HELD; i++) s[i] = load_once(scales + g * 64 + i * 16);
  }
  template <int N> static DEV_IN void block(const Unit<F_E4M3_32>& u, int b, const Steps<N>& x, Sums<N>& s, Ones<N>& o, bool is_first) {
    uint32_t a[8];
    byte_steps<e4m3_pair>(a, u.w[b]);
    two_fresh<N>(s.group, a, x);
    add_scaled<N>(s.all, s.group, float_of(word_at(u.s, 2 * b)), float_of(word_at(u.s, 2 * b + 1)));
  }
  static DEV_IN uint64_t codes(const uint8_t* b, unsigned c) { return eight_bytes<4>(b + 4 + c); }
  static DEV_IN void put_scales(const uint8_t* row, uint8_t* to, unsigned at, unsigned first, unsigned cols) {
    for (unsigned b = 0; b < 8 && first + 32 * b < cols; b++)
      reinterpret_cast<uint32_t*>(to)[at % 8 * 16 + b * 2 + at / 8] = stored<uint32_t>(row + (first / 32 + b) * 36);
  }
  static DEV_IN float number(const uint8_t* scales, unsigned row, unsigned c, uint32_t code) {
    return from_e4m3(code) * load_f32(scales + (row % 8 * 16 + c / 32 * 2 + row / 8) * 4);
  }
};

// X(name) of each format that has atoms; src/kernels.rs reads them here.
// (Of others two strips at once do not fit a warp's registers.)
#define FOR_EACH_GATED(X) \
  X(BF16) X(Q8_0) X(F8_E4M3)
#define FOR_EACH_WIDE(X) \
  X(BF16) X(Q8_0) X(Q4_0) X(Q4_1) X(Q4_K) X(Q6_K) X(U4_64) X(U4_128) X(F8_E4M3) X(E4M3_32)
#define FOR_EACH_ATOM(X) \
  X(BF16) X(Q8_0) X(Q4_0) X(Q4_1) X(Q4_K) X(Q6_K) X(U4_32) X(U4_64) X(U4_128) X(F8_E4M3) X(E4M3_32)
