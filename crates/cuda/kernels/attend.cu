// Head norms, rotation, storing of keys and values, attention over caches and over keys of the step.
#include "cache.cuh"
#include "seen.cuh"

enum { NO_NORM, RMS, LAYER };

// Normalises a row in shared memory; by a warp.
DEV void normalise(float* row, unsigned len, unsigned kind, const float* weight, float offset, float eps) {
  float mean = 0.f;
  if (kind == LAYER) {
    for (unsigned i = lane(); i < len; i += 32) mean += row[i];
    mean = warp_sum(mean) / (float)len;
  }
  float square = 0.f;
  for (unsigned i = lane(); i < len; i += 32) square = fmaf(row[i] - mean, row[i] - mean, square);
  float root = sqrtf(warp_sum(square) / (float)len + eps);
  for (unsigned i = lane(); i < len; i += 32) row[i] = (row[i] - mean) / root * (weight[i] + offset);
  sync_warp();
}

// Rotates the first columns of a row in shared memory; by a warp.
DEV void rotate(float* row, unsigned pairs, bool interleaved, const float* inv_freq, const float* factors, float magnitude, unsigned position) {
  for (unsigned i = lane(); i < pairs; i += 32) {
    float freq = factors ? div_rn(inv_freq[i], factors[i]) : inv_freq[i];
    float angle = mul_rn((float)position, freq), s = sinf(angle) * magnitude, c = cosf(angle) * magnitude;
    unsigned one = interleaved ? 2 * i : i, two = interleaved ? 2 * i + 1 : i + pairs;
    float x = row[one], y = row[two];
    row[one] = x * c - y * s;
    row[two] = y * c + x * s;
  }
  sync_warp();
}

DEV float growth(unsigned position, unsigned offset, unsigned every, float beta) {
  double steps = (double)(((uint64_t)position + offset) / every);
  return (float)((double)beta * log(1.0 + steps) + 1.0);
}

// p: step, q, k, v, weight of q's norm, of k's, frequencies, their divisors, out, cache
// n: heads, key heads, columns of a q and k head, of a v head, ld of q, k, v, out, pairs rotated, interleaved, kind of q's norm,
//    from head to head of its weight, the same of k, growth: every, offset, then of the cache: tokens of a block, group, bytes of a
//    block, start of its values, format of keys, of values, bytes of a key head, of a value head
// f: of q's norm: added to the weight, under the root; the same of k; growth's beta, magnitude
// A warp a token and head: query heads, then heads of keys, then of values. Memory: a head.
KERNEL(rotate_store) {
  DYNAMIC(float, row);
  const Step* step = at<const Step>(a.p[0]);
  unsigned token = block_x(), head = block_y(), kind = 0, dim = a.n[2], cache_heads = a.n[1];
  if (token >= step->tokens) return;
  if (head >= a.n[0]) head -= a.n[0], kind = 1;
  if (kind == 1 && head >= cache_heads) head -= cache_heads, kind = 2, dim = a.n[3];
  const float* x = row_of(a.p[1 + kind], token, a.n[4 + kind]) + head * dim;
  for (unsigned i = lane(); i < dim; i += 32) row[i] = x[i];
  sync_warp();
  unsigned position = array(step, step->positions)[token];
  if (kind < 2) {
    if (a.n[10 + 2 * kind]) {
      const float* weight = at<const float>(a.p[4 + kind]) + head * a.n[11 + 2 * kind];
      normalise(row, dim, a.n[10 + 2 * kind], weight, a.f[2 * kind], a.f[1 + 2 * kind]);
    }
    if (a.n[8]) rotate(row, a.n[8], a.n[9], at<const float>(a.p[6]), at<const float>(a.p[7]), a.f[5], position);
  }
  if (kind == 0) {
    float grown = a.n[14] ? growth(position, a.n[15], a.n[14], a.f[4]) : 1.f;
    float* out = row_to(a.p[8], token, a.n[7]) + head * dim;
    for (unsigned i = lane(); i < dim; i += 32) out[i] = row[i] * grown;
    return;
  }
  const Span& span = array<Span>(step, step->span)[array(step, step->span_of)[token]];
  unsigned index = span.context + token - span.first, block_tokens = a.n[16];
  uint8_t* block = block_of(a.p[9], table_of(step, span, a.n[17]), index, block_tokens, a.n[18]);
  unsigned place = (index % block_tokens) * cache_heads + head;
  uint8_t* to = kind == 1 ? block + (size_t)place * a.n[22] : block + a.n[19] + (size_t)place * a.n[23];
  put_head(a.n[20 + kind - 1], to, row, dim);
}

// p: step, latent, weight of its norm, key, frequencies, their divisors, cache
// n: columns of the latent, of the key, ld of latent, key, pairs rotated, interleaved, then of the cache: tokens of a block, group,
//    bytes of a block, start of its keys, format, bytes of a latent, of a key
// f: added under the root, magnitude
// A warp a token, for the latent and for the key. Memory: the longer of them.
KERNEL(store_latent) {
  DYNAMIC(float, row);
  const Step* step = at<const Step>(a.p[0]);
  unsigned token = block_x(), key = block_y(), dim = a.n[key];
  if (token >= step->tokens) return;
  const float* x = row_of(a.p[key ? 3 : 1], token, a.n[2 + key]);
  for (unsigned i = lane(); i < dim; i += 32) row[i] = x[i];
  sync_warp();
  if (key)
    rotate(row, a.n[4], a.n[5], at<const float>(a.p[4]), at<const float>(a.p[5]), a.f[1], array(step, step->positions)[token]);
  else
    normalise(row, dim, RMS, at<const float>(a.p[2]), 0.f, a.f[0]);
  const Span& span = array<Span>(step, step->span)[array(step, step->span_of)[token]];
  unsigned index = span.context + token - span.first;
  uint8_t* block = block_of(a.p[6], table_of(step, span, a.n[7]), index, a.n[6], a.n[8]);
  uint8_t* to = key ? block + a.n[9] + (size_t)(index % a.n[6]) * a.n[12] : block + (size_t)(index % a.n[6]) * a.n[11];
  put_head(a.n[10], to, row, dim);
}

static constexpr unsigned WARPS = 4, COLUMNS = 16;  // v_dim at most 32 · COLUMNS
static constexpr unsigned AHEAD = 4;  // values that are asked for together

struct alignas(16) EightHalves {
  uint16_t v[8];
};

// Numbers i … i + 7 of a head, i a multiple of 8: as kv_at has them, by the longest loads that the head's address allows (heads lie
// at multiples of 4). `is_aligned`: at a multiple of 16.
template <int KV> DEV void eight_kv(const uint8_t* head, unsigned i, bool is_aligned, float (&out)[8]) {
  if (KV == KV_F32 || KV == FRESH) {
    eight_of(reinterpret_cast<const float*>(head), i / 8, is_aligned, out);
  } else if (KV == KV_BF16 && is_aligned) {
    EightHalves halves = reinterpret_cast<const EightHalves*>(head)[i / 8];
    UNROLL for (int k = 0; k < 8; k++) out[k] = bf16_to_f32(halves.v[k]);
  } else if (KV == KV_INT16) {
    float scale = *reinterpret_cast<const float*>(head);
    const uint32_t* words = reinterpret_cast<const uint32_t*>(head + 4) + i / 2;
    UNROLL for (int k = 0; k < 8; k++) out[k] = scale * (float)(int16_t)(words[k / 2] >> (k % 2 * 16));
  } else if (KV == KV_INT8) {
    float scale = *reinterpret_cast<const float*>(head);
    const uint32_t* words = reinterpret_cast<const uint32_t*>(head + 4) + i / 4;
    UNROLL for (int k = 0; k < 8; k++) out[k] = scale * (float)(int8_t)(words[k / 4] >> (k % 4 * 8));
  } else if (KV == KV_INT4) {
    // (A group lies at a multiple of 2.)
    const uint16_t* group = reinterpret_cast<const uint16_t*>(head + i / 32 * 18);
    uint32_t codes = group[1 + i % 32 / 4] | (uint32_t)group[2 + i % 32 / 4] << 16;
    float scale = f16_to_f32(group[0]);
    UNROLL for (int k = 0; k < 8; k++) out[k] = scale * (2.f * (float)(codes >> (4 * k) & 15) - 15.f);
  } else {
    UNROLL for (int k = 0; k < 8; k++) out[k] = kv_at<KV>(head, i + k);
  }
}

// sum + q · head, column by column.
template <int KV> DEV float kv_dot(const float* q, const uint8_t* head, unsigned len, float sum) {
  bool is_aligned = (uintptr_t)head % 16 == 0;
  unsigned c = 0;
  for (; c + 8 <= len; c += 8) {
    float x[8];
    eight_kv<KV>(head, c, is_aligned, x);
    UNROLL for (int k = 0; k < 8; k++) sum = fmaf(q[c + k], x[k], sum);
  }
  for (; c < len; c++) sum = fmaf(q[c], kv_at<KV>(head, c), sum);
  return sum;
}

// Attention of one query over the keys of a range: warp w takes every fourth run of 32 keys from the w-th on, a lane a key; then
// the warps' sums are joined in order. Memory: WARPS · (32 + v_dim + 2) numbers. out [v_dim] lies in shared memory.
template <class Keys> DEV void attend_one(const Keys& keys, const float* q, Range range, unsigned v_dim, float scale, float cap,
                                          const float* sink, float* memory, float* out) {
  SHARED(const uint8_t*, all_rows, WARPS * 32);
  const uint8_t** rows = all_rows + warp() * 32;
  float *probs = memory + warp() * 32, *sums = memory + WARPS * 32, *maxima = sums + WARPS * v_dim, *totals = maxima + WARPS;
  float most = -infinity(), total = 0.f, sum[COLUMNS];
  UNROLL for (unsigned i = 0; i < COLUMNS; i++) sum[i] = 0.f;
  for (unsigned first = range.first + 32 * warp(); first < range.end; first += 32 * WARPS) {
    unsigned key = first + lane(), count = range.end - first < 32 ? range.end - first : 32;
    float score = key < range.end ? capped(keys.score(q, key) * scale, cap) : -infinity();
    float next = fmaxf(most, warp_max(score));
    float kept = most == next ? 1.f : expf(most - next);
    float p = key < range.end ? expf(score - next) : 0.f;
    total = total * kept + warp_sum(p);
    most = next;
    probs[lane()] = p;
    rows[lane()] = key < range.end ? keys.value(key) : nullptr;
    sync_warp();
    UNROLL for (unsigned i = 0; i < COLUMNS; i++) sum[i] *= kept;
    // A column's values in the order of keys, some of them ahead.
    unsigned k = 0;
    for (; k + AHEAD <= count; k += AHEAD)
      UNROLL for (unsigned i = 0; i < COLUMNS; i++) {
        if (32 * i + lane() >= v_dim) break;
        float v[AHEAD];
        UNROLL for (unsigned j = 0; j < AHEAD; j++) v[j] = keys.number(rows[k + j], 32 * i + lane());
        UNROLL for (unsigned j = 0; j < AHEAD; j++) sum[i] = fmaf(probs[k + j], v[j], sum[i]);
      }
    for (; k < count; k++)
      UNROLL for (unsigned i = 0; i < COLUMNS; i++)
        if (32 * i + lane() < v_dim) sum[i] = fmaf(probs[k], keys.number(rows[k], 32 * i + lane()), sum[i]);
    sync_warp();
  }
  UNROLL for (unsigned i = 0; i < COLUMNS; i++)
    if (32 * i + lane() < v_dim) sums[warp() * v_dim + 32 * i + lane()] = sum[i];
  if (lane() == 0) maxima[warp()] = most, totals[warp()] = total;
  sync_block();
  most = sink ? *sink : -infinity();
  for (unsigned w = 0; w < WARPS; w++) most = fmaxf(most, maxima[w]);
  total = sink ? expf(*sink - most) : 0.f;
  for (unsigned w = 0; w < WARPS; w++) total += totals[w] * expf(maxima[w] - most);
  for (unsigned c = thread(); c < v_dim; c += threads()) {
    float y = 0.f;
    for (unsigned w = 0; w < WARPS; w++) y += sums[w * v_dim + c] * expf(maxima[w] - most);
    out[c] = y / total;
  }
  sync_block();
}

// Keys and values of one head in a cache's blocks, or in buffers of the step (then their blocks are single rows).
template <int K, int V> struct Heads {
  const uint8_t *keys, *values;  // of the head, in block 0
  const uint32_t* table;
  unsigned dim, block_tokens;
  size_t block_bytes, key_stride, value_stride;

  DEV_IN const uint8_t* row(const uint8_t* from, size_t stride, unsigned i) const {
    if (K == FRESH) return from + i * stride;
    return from + table[i / block_tokens] * block_bytes + (i % block_tokens) * stride;
  }
  DEV_IN float score(const float* q, unsigned i) const {
    return kv_dot<K>(q, row(keys, key_stride, i), dim, 0.f);
  }
  DEV_IN const uint8_t* value(unsigned i) const { return row(values, value_stride, i); }
  DEV_IN float number(const uint8_t* value, unsigned c) const { return kv_at<V>(value, c); }
};

// p: step, q, keys (cache, or buffer), values (buffer), sinks, out
// n: heads, key heads, columns of a key head, of a value head, ld of q, out, mask, its number, then of a cache: tokens of a block,
//    group, bytes of a block, start of its values; bytes of a key head, of a value head (of a buffer: 4 · columns); ld of k, v
// f: scale, cap (0: none)
// A block a token and head.
template <int K, int V> DEV void attend(const Args& a) {
  DYNAMIC(float, memory);
  const Step* step = at<const Step>(a.p[0]);
  unsigned token = block_x(), head = block_y(), dim = a.n[2], v_dim = a.n[3];
  if (token >= step->tokens) return;
  const Span& span = array<Span>(step, step->span)[array(step, step->span_of)[token]];
  float *q = memory, *out = q + dim, *rest = out + v_dim;
  const float* x = row_of(a.p[1], token, a.n[4]) + head * dim;
  for (unsigned i = thread(); i < dim; i += threads()) q[i] = x[i];
  sync_block();
  if (K == KV_INT4) turn(q, dim, thread(), threads(), [] { sync_block(); });
  unsigned shared = head / (a.n[0] / a.n[1]), place = token - span.first, total = span.len;
  Heads<K, V> keys;
  keys.dim = dim;
  if (K == FRESH) {
    keys.key_stride = a.n[14] * sizeof(float), keys.value_stride = a.n[15] * sizeof(float);
    keys.keys = at<const uint8_t>(a.p[2]) + span.first * keys.key_stride + shared * a.n[12];
    keys.values = at<const uint8_t>(a.p[3]) + span.first * keys.value_stride + shared * a.n[13];
    keys.table = nullptr, keys.block_tokens = 1, keys.block_bytes = 0;
  } else {
    place += span.context, total += span.context;
    keys.table = table_of(step, span, a.n[9]);
    keys.block_tokens = a.n[8], keys.block_bytes = a.n[10];
    keys.key_stride = (size_t)a.n[12] * a.n[1], keys.value_stride = (size_t)a.n[13] * a.n[1];
    keys.keys = at<const uint8_t>(a.p[2]) + shared * a.n[12];
    keys.values = at<const uint8_t>(a.p[2]) + a.n[11] + shared * a.n[13];
  }
  const float* sink = a.p[4] ? at<const float>(a.p[4]) + head : nullptr;
  attend_one(keys, q, seen(a.n[6], a.n[7], place, total), v_dim, a.f[0], a.f[1], sink, rest, out);
  if (V == KV_INT4) turn(out, v_dim, thread(), threads(), [] { sync_block(); });
  float* to = row_to(a.p[5], token, a.n[5]) + head * v_dim;
  for (unsigned c = thread(); c < v_dim; c += threads()) to[c] = out[c];
}

KERNEL(attend_fresh) { attend<FRESH, FRESH>(a); }
KERNEL(attend_f32) { attend<KV_F32, KV_F32>(a); }
KERNEL(attend_bf16) { attend<KV_BF16, KV_BF16>(a); }
KERNEL(attend_int16) { attend<KV_INT16, KV_INT16>(a); }
KERNEL(attend_int8) { attend<KV_INT8, KV_INT8>(a); }
KERNEL(attend_int4) { attend<KV_INT4, KV_INT4>(a); }
KERNEL(attend_k8v4) { attend<KV_INT8, KV_INT4>(a); }

// A latent is key and value of every head; beside it lies a rotated key.
template <int F> struct Latents {
  const uint8_t* cache;
  const uint32_t* table;
  unsigned latent, rope, block_tokens, latent_bytes, key_start, key_bytes;
  size_t block_bytes;

  DEV_IN const uint8_t* block(unsigned i) const { return cache + table[i / block_tokens] * block_bytes; }
  DEV_IN const uint8_t* value(unsigned i) const { return block(i) + (size_t)(i % block_tokens) * latent_bytes; }
  DEV_IN float number(const uint8_t* value, unsigned c) const { return kv_at<F>(value, c); }
  DEV_IN float score(const float* q, unsigned i) const {
    const uint8_t *one = value(i), *two = block(i) + key_start + (size_t)(i % block_tokens) * key_bytes;
    return kv_dot<F>(q + latent, two, rope, kv_dot<F>(q, one, latent, 0.f));
  }
};

// p: step, latent part of q, rotated part, cache, out
// n: columns of the latent, of the key, ld of both parts of q, of out, then of the cache: tokens of a block, group, bytes of a block,
//    start of its keys, bytes of a latent, of a key
// f: scale
// A block a token and head.
template <int F> DEV void attend_latent(const Args& a) {
  DYNAMIC(float, memory);
  const Step* step = at<const Step>(a.p[0]);
  unsigned token = block_x(), head = block_y(), latent = a.n[0], rope = a.n[1];
  if (token >= step->tokens) return;
  const Span& span = array<Span>(step, step->span)[array(step, step->span_of)[token]];
  float *q = memory, *out = q + latent + rope, *rest = out + latent;
  const float *one = row_of(a.p[1], token, a.n[2]) + head * latent, *two = row_of(a.p[2], token, a.n[3]) + head * rope;
  for (unsigned i = thread(); i < latent; i += threads()) q[i] = one[i];
  for (unsigned i = thread(); i < rope; i += threads()) q[latent + i] = two[i];
  sync_block();
  Latents<F> keys;
  keys.cache = at<const uint8_t>(a.p[3]), keys.table = table_of(step, span, a.n[6]);
  keys.latent = latent, keys.rope = rope, keys.block_tokens = a.n[5], keys.block_bytes = a.n[7];
  keys.key_start = a.n[8], keys.latent_bytes = a.n[9], keys.key_bytes = a.n[10];
  Range range = {0, span.context + token - span.first + 1};
  attend_one(keys, q, range, latent, a.f[0], 0.f, nullptr, rest, out);
  float* to = row_to(a.p[4], token, a.n[4]) + head * latent;
  for (unsigned c = thread(); c < latent; c += threads()) to[c] = out[c];
}

KERNEL(attend_latent_f32) { attend_latent<KV_F32>(a); }
KERNEL(attend_latent_bf16) { attend_latent<KV_BF16>(a); }
KERNEL(attend_latent_int8) { attend_latent<KV_INT8>(a); }
