// Numbers of a head as caches keep them: those that have scales begin with them. KvFormat's meaning; the layout is this device's.
#pragma once
#include "numbers.cuh"

enum { KV_F32, KV_BF16, KV_INT16, KV_INT8, KV_INT4, FRESH };

// Number i of a head.
template <int KV> DEV float kv_at(const uint8_t* head, unsigned i) {
  if (KV == KV_F32 || KV == FRESH) return reinterpret_cast<const float*>(head)[i];
  if (KV == KV_BF16) return bf16_to_f32(reinterpret_cast<const uint16_t*>(head)[i]);
  if (KV == KV_INT16) return *reinterpret_cast<const float*>(head) * (float)reinterpret_cast<const int16_t*>(head + 4)[i];
  if (KV == KV_INT8) return *reinterpret_cast<const float*>(head) * (float)reinterpret_cast<const int8_t*>(head + 4)[i];
  // 32 numbers: an f16, then nibbles.
  const uint8_t* group = head + i / 32 * 18;
  unsigned code = group[2 + i % 32 / 2] >> (i % 2 * 4) & 15;
  return load_f16(group) * (2.f * (float)code - 15.f);
}

// The orthonormal Hadamard transform, its own inverse, over blocks of the largest power of two that divides the row, by all
// `count` threads, which `sync` lets meet.
template <class Sync> DEV void turn(float* row, unsigned len, unsigned id, unsigned count, Sync sync) {
  unsigned block = len & (~len + 1);
  if (block > 256) block = 256;
  for (unsigned distance = 1; distance < block; distance *= 2) {
    for (unsigned k = id; k < len / 2; k += count) {
      unsigned i = k / distance * 2 * distance + k % distance;
      float x = row[i], y = row[i + distance];
      row[i] = x + y;
      row[i + distance] = x - y;
    }
    sync();
  }
  float scale = 1.f / sqrtf((float)block);
  for (unsigned i = id; i < len; i += count) row[i] *= scale;
  sync();
}

// Greatest size of a row's numbers; by a warp.
DEV float greatest(const float* row, unsigned len) {
  float most = 0.f;
  for (unsigned i = lane(); i < len; i += 32) most = fmaxf(most, fabsf(row[i]));
  return warp_max(most);
}

template <class T> DEV void put_codes(uint8_t* head, const float* row, unsigned len, float most) {
  float scale = greatest(row, len) / most;
  if (lane() == 0) *reinterpret_cast<float*>(head) = scale;
  T* codes = reinterpret_cast<T*>(head + 4);
  for (unsigned i = lane(); i < len; i += 32) codes[i] = scale == 0.f ? (T)0 : (T)rintf(row[i] / scale);
}

// Stores a row that a warp has in shared memory (and may change).
DEV void put_head(unsigned format, uint8_t* head, float* row, unsigned len) {
  if (format == KV_F32) {
    for (unsigned i = lane(); i < len; i += 32) reinterpret_cast<float*>(head)[i] = row[i];
  } else if (format == KV_BF16) {
    for (unsigned i = lane(); i < len; i += 32) reinterpret_cast<uint16_t*>(head)[i] = f32_to_bf16(row[i]);
  } else if (format == KV_INT16) {
    put_codes<int16_t>(head, row, len, 4095.f);
  } else if (format == KV_INT8) {
    put_codes<int8_t>(head, row, len, 127.f);
  } else {
    turn(row, len, lane(), 32, [] { sync_warp(); });
    for (unsigned first = 0; first < len; first += 32) {
      unsigned count = len - first < 32 ? len - first : 32;
      uint16_t bits = f32_to_f16(greatest(row + first, count) / 15.f);
      float scale = f16_to_f32(bits);
      uint8_t* group = head + first / 32 * 18;
      if (lane() == 0) group[0] = (uint8_t)bits, group[1] = (uint8_t)(bits >> 8);
      if (lane() >= 16) continue;
      unsigned byte = 0;
      for (unsigned half = 0; half < 2; half++) {
        unsigned i = 2 * lane() + half;
        // (Where the scale is 0 any code is 0.)
        float q = i < count && scale > 0.f ? floorf(row[first + i] / (2.f * scale)) : 0.f;
        byte |= (unsigned)((int)fminf(fmaxf(q, -8.f), 7.f) + 8) << (4 * half);
      }
      group[2 + lane()] = (uint8_t)byte;
    }
  }
}

// Where the block of the token at `index` of a sequence begins.
DEV uint8_t* block_of(uint64_t cache, const uint32_t* table, unsigned index, unsigned block_tokens, uint64_t block_bytes) {
  return at<uint8_t>(cache) + table[index / block_tokens] * block_bytes;
}

// The block table of a sequence for a group.
DEV const uint32_t* table_of(const Step* step, const Span& span, unsigned group) {
  return array(step, step->tables) + span.tables[group];
}
