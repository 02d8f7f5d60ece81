// Attention over caches in bf16 and int8 by tensor cores. A block has some rows of queries that share a head of keys: a row is a token and
// one of the query heads. It goes over the keys 128 at a time: each of four warps has scores of 32 keys, then a quarter of the
// columns of the values of all. Scores are those of keys (16 rows of mma) and queries (its 8 columns), so that loads of a cache
// go straight to tensor cores, and a row's numbers depend on its query, its keys and nothing else: not on the rows beside it, on
// how many there are, or on which blocks share the keys (while values are finite: weights of 0 meet those that others see).
// Sums of SPLIT_KEYS keys are joined in the order of keys, by whoever.
// Queries and probabilities are rounded to bf16 as operands; sums are f32. A step's few tokens have their splits computed side by
// side (attend_few, attend_join); longer runs of tokens have them one after another (attend_many): the same bits.
#include "cache.cuh"
#include "seen.cuh"

static constexpr unsigned WARPS = 4, STEP = 128, NONE = 0xffffffffu;
// Words from row to row of probabilities: such that lanes of a load meet different banks.
static constexpr unsigned PROBS_LD = STEP / 2 + 4;
static constexpr float LOG2_E = 1.44269504f;

// Codes of 8 bits as bf16, exactly.
DEV uint32_t pair_of_codes(uint32_t apart) {
  return sub_pairs(and_or(apart, 0x007f007fu, 0x43004300u), and_or(apart, 0x00800080u, 0x43004300u));
}

struct alignas(8) Two {
  uint32_t w[2];
};

// How a head of a format is loaded: eight numbers of a key, or 2·M of a value, as pairs in bf16.
template <int KV> struct Kept;
template <> struct Kept<KV_BF16> {
  static constexpr bool IS_SCALED = false;
  struct Key {
    Quad q;
  };
  DEV_IN static Key key(const uint8_t* head, unsigned first) { return {load_here(head + 2 * first)}; }
  DEV_IN static Quad pairs(const Key& key) { return key.q; }
  template <int M> DEV_IN static void value(const uint8_t* head, unsigned first, uint32_t (&out)[M]) {
    const uint8_t* from = head + 2 * first;
    if (M == 4) {
      Quad q = load_here(from);
      UNROLL for (int i = 0; i < M; i++) out[i] = q.w[i];
    } else if (M == 2) {
      Two two = *reinterpret_cast<const Two*>(from);
      UNROLL for (int i = 0; i < M; i++) out[i] = two.w[i];
    } else {
      out[0] = *reinterpret_cast<const uint32_t*>(from);
    }
  }
};
template <> struct Kept<KV_INT8> {
  static constexpr bool IS_SCALED = true;
  struct Key {
    uint32_t w[2];
  };
  DEV_IN static Key key(const uint8_t* head, unsigned first) {
    const uint32_t* from = reinterpret_cast<const uint32_t*>(head + 4 + first);
    return {{from[0], from[1]}};
  }
  DEV_IN static Quad pairs(const Key& key) {
    Quad q;
    UNROLL for (int i = 0; i < 2; i++) {
      q.w[2 * i] = pair_of_codes(bytes_apart<0>(key.w[i]));
      q.w[2 * i + 1] = pair_of_codes(bytes_apart<1>(key.w[i]));
    }
    return q;
  }
  template <int M> DEV_IN static void value(const uint8_t* head, unsigned first, uint32_t (&out)[M]) {
    const uint8_t* from = head + 4 + first;
    if (M == 1) {
      out[0] = pair_of_codes(bytes_apart<0>(*reinterpret_cast<const uint16_t*>(from)));
    } else {
      UNROLL for (int i = 0; i < M; i += 2) {
        uint32_t word = reinterpret_cast<const uint32_t*>(from)[i / 2];
        out[i] = pair_of_codes(bytes_apart<0>(word));
        out[i + 1] = pair_of_codes(bytes_apart<1>(word));
      }
    }
  }
};

// A block's memory: queries and probabilities as pairs, [row][words]; maxima, or sums, of each warp's keys; which keys a row sees;
// what its splits so far have come to: their greatest score and their sum.
template <int D, int N> struct Desk {
  static constexpr unsigned ROWS = 8 * N, QUERIES_LD = D / 2 + 4;
  uint32_t *queries, *probs;
  float *shares, *totals;
  Range* ranges;
};

#define DESK(name, D, N)                                                 \
  SHARED(uint32_t, queries_, 8 * N * (D / 2 + 4));                       \
  SHARED(uint32_t, probs_, 8 * N * PROBS_LD);                            \
  SHARED(float, shares_, WARPS * 8 * N);                                 \
  SHARED(float, totals_, 2 * 8 * N);                                     \
  SHARED(Range, ranges_, 8 * N);                                         \
  const Desk<D, N> name = {queries_, probs_, shares_, totals_, ranges_}

// p: step, q, cache, sinks, out, sums of splits: [slot][FEW_TOKENS][heads][2 + D] (the greatest score, the sum of weights, sums)
// n: heads, key heads, ld of q, out, mask, its number, then of the cache: tokens of a block, group, bytes of a block, start of its
//    values, bytes of a key head, of a value head; tokens of a block of attend_many
// f: scale, cap (0: none)

// Some rows of a sequence: rows first … first + count of its tokens from `token` on, `heads` a token.
struct Rows {
  const Span* span;
  unsigned token, first, count, heads, shared;  // `shared`: the head of keys
  DEV_IN unsigned token_of(unsigned row) const { return token + (first + row) / heads; }
  DEV_IN unsigned head_of(unsigned row) const { return shared * heads + (first + row) % heads; }
};

// What a weight of a sum whose greatest score is `own` becomes beside one of `most`.
DEV float share_of(float own, float most) { return own == -infinity() ? 0.f : exp2_of(sub_rn(own, most)); }

// A row's sum joined to that of the splits before.
DEV float joined(float before, float by, float sum, float own_by) { return add_rn(mul_rn(before, by), mul_rn(sum, own_by)); }

// Keys and values of one head in a cache. Blocks hold whole groups of 32 tokens.
struct Cached {
  const uint8_t* cache;
  const uint32_t* table;
  size_t block_bytes, values;
  unsigned block_tokens, key_stride, value_stride;

  DEV_IN Cached(const Args& a, const Step* step, const Span& span, unsigned shared) {
    cache = at<const uint8_t>(a.p[2]) + (size_t)shared * a.n[10];
    table = table_of(step, span, a.n[7]);
    block_tokens = a.n[6], block_bytes = a.n[8];
    values = a.n[9] + (size_t)shared * a.n[11] - (size_t)shared * a.n[10];
    key_stride = a.n[10] * a.n[1], value_stride = a.n[11] * a.n[1];
  }
  DEV_IN const uint8_t* key(unsigned i) const {
    return cache + table[i / block_tokens] * block_bytes + (size_t)(i % block_tokens) * key_stride;
  }
  DEV_IN const uint8_t* value(unsigned i) const {
    return cache + values + table[i / block_tokens] * block_bytes + (size_t)(i % block_tokens) * value_stride;
  }
};

// A warp's keys of a step, 32 of them: where they are, and which of a lane's four are from `begin` to `end`, by bits.
struct Group {
  const uint8_t *key, *value;
  unsigned there;

  DEV_IN Group(const Cached& cached, unsigned first, unsigned begin, unsigned end) {
    bool is_none = first >= end || first + 32 <= begin;
    key = is_none ? nullptr : cached.key(first) + (size_t)(lane() / 4) * cached.key_stride;
    value = is_none ? nullptr : cached.value(first) + (size_t)(lane() / 4) * cached.value_stride;
    there = 0;
    UNROLL for (unsigned i = 0; i < 4; i++) {
      unsigned own = first + 8 * i + lane() / 4;
      if (!is_none && own >= begin && own < end) there |= 1u << i;
    }
  }
  DEV_IN bool has(int i) const { return there >> i & 1; }
};

// Numbers of keys in a lane's registers: DEPTH blocks of 32 columns, which are asked for again, for later columns or the next
// step, as soon as they were used. Key i of a lane is 8·i + g of the group, and its columns of a block 8·t … 8·t + 7.
template <int KV, int D, int N> struct Keys {
  static constexpr int BLOCKS = D / 32, MOST = N > 2 ? 1 : 4, DEPTH = BLOCKS < MOST ? BLOCKS : MOST;
  typename Kept<KV>::Key k[DEPTH][4];

  DEV_IN void load(const Cached& cached, const Group& group, int block) {
    UNROLL for (int i = 0; i < 4; i++) {
      k[block % DEPTH][i] = {};
      if (group.has(i)) k[block % DEPTH][i] = Kept<KV>::key(group.key + (size_t)(8 * i) * cached.key_stride, 32 * block + lane() % 4 * 8);
    }
  }
};

// Scales of a lane's keys and their values.
struct Scales {
  float key[4], value[4];

  DEV_IN Scales(const Cached& cached, const Group& group) {
    UNROLL for (int i = 0; i < 4; i++) {
      key[i] = value[i] = 0.f;
      if (!group.has(i)) continue;
      key[i] = *reinterpret_cast<const float*>(group.key + (size_t)(8 * i) * cached.key_stride);
      value[i] = *reinterpret_cast<const float*>(group.value + (size_t)(8 * i) * cached.value_stride);
    }
  }
};

// Sums over keys of a split, as lanes hold them: columns of values by two rows of queries, of each 8 rows.
template <int D, int N> struct Sums {
  static constexpr int M = D / 64;
  float o[M][N][4], most[N][2], total[N][2];
};

// Scores of a warp's keys with all rows: score[i / 2][n][i % 2 * 2 + e] is that of key i and row 8·n + 2·t + e. `next`: the group
// whose keys are asked for meanwhile.
template <int KV, int D, int N>
DEV void score(const Cached& cached, const Group& own, const Group& next, const Desk<D, N>& desk, Keys<KV, D, N>& keys, float (&score)[2][N][4]) {
  UNROLL for (int b = 0; b < keys.BLOCKS; b++) {
    Quad x[4];
    UNROLL for (int i = 0; i < 4; i++) x[i] = Kept<KV>::pairs(keys.k[b % keys.DEPTH][i]);
    keys.load(cached, b + keys.DEPTH < keys.BLOCKS ? own : next, (b + keys.DEPTH) % keys.BLOCKS);
    UNROLL for (int n = 0; n < N; n++) {
      Quad q = *reinterpret_cast<const Quad*>(desk.queries + (8 * n + lane() / 4) * desk.QUERIES_LD + b * 16 + lane() % 4 * 4);
      UNROLL for (int m = 0; m < 2; m++) {
        const Quad &one = x[2 * m], &two = x[2 * m + 1];
        if (b == 0)
          mma_fresh(score[m][n], one.w[0], two.w[0], one.w[1], two.w[1], q.w[0], q.w[1]);
        else
          mma(score[m][n], one.w[0], two.w[0], one.w[1], two.w[1], q.w[0], q.w[1]);
        mma(score[m][n], one.w[2], two.w[2], one.w[3], two.w[3], q.w[2], q.w[3]);
      }
    }
  }
}

// Scores scaled, capped and masked, to base 2; and the greatest of each row among the warp's keys.
template <int KV, int D, int N>
DEV void finish_scores(const Args& a, const Scales& scales, const Desk<D, N>& desk, unsigned first, bool is_masked, float (&score)[2][N][4]) {
  UNROLL for (int n = 0; n < N; n++)
    UNROLL for (int e = 0; e < 2; e++) {
      unsigned row = 8 * n + lane() % 4 * 2 + e;
      Range range = is_masked ? desk.ranges[row] : Range{0, NONE};
      float most = -infinity();
      UNROLL for (int i = 0; i < 4; i++) {
        float& s = score[i / 2][n][i % 2 * 2 + e];
        if (Kept<KV>::IS_SCALED) s = mul_rn(s, scales.key[i]);
        s = mul_rn(capped(mul_rn(s, a.f[0]), a.f[1]), LOG2_E);
        unsigned key = first + 8 * i + lane() / 4;
        if (key < range.first || key >= range.end) s = -infinity();
        most = fmaxf(most, s);
      }
      for (unsigned d = 4; d < 32; d *= 2) most = fmaxf(most, across(most, d));
      if (lane() < 4) desk.shares[warp() * desk.ROWS + row] = most;
    }
}

// Weights of the warp's keys from their scores, beside the greatest of each row so far; what was summed before is made less by as
// much as that has grown.
template <int KV, int D, int N>
DEV void weigh(const Scales& scales, const Desk<D, N>& desk, float (&score)[2][N][4], Sums<D, N>& sums) {
  UNROLL for (int n = 0; n < N; n++) {
    UNROLL for (int e = 0; e < 2; e++) {
      unsigned row = 8 * n + lane() % 4 * 2 + e;
      float before = sums.most[n][e], most = before;
      UNROLL for (unsigned w = 0; w < WARPS; w++) most = fmaxf(most, desk.shares[w * desk.ROWS + row]);
      float by = share_of(before, most), own = 0.f;
      UNROLL for (int i = 0; i < 4; i++) {
        float& s = score[i / 2][n][i % 2 * 2 + e];
        s = share_of(s, most);
        own = add_rn(own, s);
      }
      sums.most[n][e] = most;
      sums.total[n][e] = add_rn(mul_rn(sums.total[n][e], by), own);
      UNROLL for (int m = 0; m < sums.M; m++)
        UNROLL for (int h = 0; h < 2; h++) sums.o[m][n][2 * h + e] = mul_rn(sums.o[m][n][2 * h + e], by);
    }
    UNROLL for (int i = 0; i < 4; i++) {
      float one = score[i / 2][n][i % 2 * 2], two = score[i / 2][n][i % 2 * 2 + 1];
      if (Kept<KV>::IS_SCALED) one = mul_rn(one, scales.value[i]), two = mul_rn(two, scales.value[i]);
      desk.probs[(8 * n + lane() / 4) * PROBS_LD + warp() * 16 + 4 * i + lane() % 4] = transposed(pair_of(one, two));
    }
  }
}

// Values of a group of 32 keys, of which a lane has eight, and of them the warp's columns.
template <int D> struct Values {
  static constexpr int M = D / 64;
  uint32_t w[8][M];

  template <int KV> DEV_IN void load(const Cached& cached, unsigned first, unsigned begin, unsigned end) {
    bool is_none = first >= end || first + 32 <= begin;
    const uint8_t* head = is_none ? nullptr : cached.value(first);
    UNROLL for (unsigned i = 0; i < 8; i++) {
      unsigned in = lane() % 4 * 8 + i;
      // (What is not there is 0, for its weight alone would not do where memory holds no number.)
      UNROLL for (int k = 0; k < M; k++) w[i][k] = 0;
      if (!is_none && first + in >= begin && first + in < end)
        Kept<KV>::template value<M>(head + (size_t)in * cached.value_stride, warp() * (D / 4) + lane() / 4 * (D / 32), w[i]);
    }
  }

  template <int N> DEV_IN void add(const Desk<D, N>& desk, unsigned group, Sums<D, N>& sums) const {
    UNROLL for (int n = 0; n < N; n++) {
      Quad p = *reinterpret_cast<const Quad*>(desk.probs + (8 * n + lane() / 4) * PROBS_LD + group * 16 + lane() % 4 * 4);
      UNROLL for (int m = 0; m < M; m++)
        UNROLL for (int j = 0; j < 8; j += 4)
          mma(sums.o[m][n], low_halves(w[j][m], w[j + 1][m]), high_halves(w[j][m], w[j + 1][m]), low_halves(w[j + 2][m], w[j + 3][m]),
              high_halves(w[j + 2][m], w[j + 3][m]), p.w[j / 2], p.w[j / 2 + 1]);
    }
  }
};

// Sums over the keys begin … end, of one split. `inner`: keys that every row sees.
template <int KV, int D, int N>
DEV void sum_split(const Args& a, const Cached& cached, const Desk<D, N>& desk, unsigned begin, unsigned end, Range inner, Sums<D, N>& sums) {
  // Groups whose values are asked for before scores are made: all of a step's where there are registers for them.
  constexpr int EARLY = N > 2 ? 0 : D <= 128 ? 4 : 1;
  UNROLL for (int n = 0; n < N; n++)
    UNROLL for (int e = 0; e < 2; e++) {
      sums.most[n][e] = -infinity(), sums.total[n][e] = 0.f;
      UNROLL for (int m = 0; m < sums.M; m++) sums.o[m][n][e] = sums.o[m][n][2 + e] = 0.f;
    }
  unsigned at = begin / STEP * STEP;
  Group own(cached, at + 32 * warp(), begin, end);
  Keys<KV, D, N> keys;
  UNROLL for (int b = 0; b < keys.DEPTH; b++) keys.load(cached, own, b);
  for (; at < end; at += STEP) {
    Values<D> values[EARLY ? EARLY : 1];
    UNROLL for (int i = 0; i < EARLY; i++) values[i].template load<KV>(cached, at + 32 * i, begin, end);
    const Scales scales(cached, own);
    const Group next(cached, at + STEP + 32 * warp(), begin, end);
    float scores[2][N][4];
    score<KV, D, N>(cached, own, next, desk, keys, scores);
    unsigned first = at + 32 * warp();
    finish_scores<KV, D, N>(a, scales, desk, first, first < inner.first || first + 32 > inner.end, scores);
    sync_block();
    weigh<KV, D, N>(scales, desk, scores, sums);
    sync_block();
    UNROLL for (int i = 0; i < 4; i++) {
      if (i >= EARLY) values[i % (EARLY ? EARLY : 1)].template load<KV>(cached, at + 32 * i, begin, end);
      values[i % (EARLY ? EARLY : 1)].template add<N>(desk, i, sums);
    }
    own = next;
  }
  // Sums of weights: of lanes, then of warps, in their order. (Nobody reads the maxima any more.)
  UNROLL for (int n = 0; n < N; n++)
    UNROLL for (int e = 0; e < 2; e++) {
      float sum = sums.total[n][e];
      for (unsigned d = 4; d < 32; d *= 2) sum = add_rn(sum, across(sum, d));
      if (lane() < 4) desk.shares[warp() * desk.ROWS + 8 * n + lane() % 4 * 2 + e] = sum;
    }
  sync_block();
  UNROLL for (int n = 0; n < N; n++)
    UNROLL for (int e = 0; e < 2; e++) {
      float sum = 0.f;
      UNROLL for (unsigned w = 0; w < WARPS; w++) sum = add_rn(sum, desk.shares[w * desk.ROWS + 8 * n + lane() % 4 * 2 + e]);
      sums.total[n][e] = sum;
    }
  sync_block();
}

// What all splits of a row come to: by how much its sums are multiplied beside a sink, and by what divided.
struct Last {
  float by, total;
};
DEV Last last_of(float most, float total, const float* sink) {
  if (!sink) return {1.f, total};
  float own = mul_rn(*sink, LOG2_E), greatest = fmaxf(most, own), by = share_of(most, greatest);
  return {by, add_rn(mul_rn(total, by), share_of(own, greatest))};
}
DEV float result_of(float sum, const Last& last) { return div_rn(mul_rn(sum, last.by), last.total); }

// Where a lane's columns of m begin.
template <int D> DEV unsigned column_of(int m) { return warp() * (D / 4) + lane() / 4 * (D / 32) + 2 * m; }

// Sums of a split to the place of `slot`.
template <int D, int N> DEV void put_split(const Args& a, const Rows& rows, const Sums<D, N>& sums, unsigned slot) {
  UNROLL for (int n = 0; n < N; n++)
    UNROLL for (int e = 0; e < 2; e++) {
      unsigned row = 8 * n + lane() % 4 * 2 + e;
      if (row >= rows.count) continue;
      float* to = row_to(a.p[5], (slot * FEW_TOKENS + rows.token_of(row)) * a.n[0] + rows.head_of(row), 2 + D);
      if (thread() < 4) to[0] = sums.most[n][e], to[1] = sums.total[n][e];
      UNROLL for (int m = 0; m < sums.M; m++)
        UNROLL for (int h = 0; h < 2; h++) to[2 + column_of<D>(m) + h] = sums.o[m][n][2 * h + e];
    }
}

// Sums of a split joined to those before, which out has; after the last one, results.
template <int D, int N>
DEV void join_split(const Args& a, const Rows& rows, const Desk<D, N>& desk, const Sums<D, N>& sums, bool is_first, bool is_last) {
  float most[N][2], total[N][2];
  UNROLL for (int n = 0; n < N; n++)
    UNROLL for (int e = 0; e < 2; e++) {
      unsigned row = 8 * n + lane() % 4 * 2 + e;
      float before = is_first ? -infinity() : desk.totals[2 * row], sum = is_first ? 0.f : desk.totals[2 * row + 1];
      most[n][e] = fmaxf(before, sums.most[n][e]);
      float by = share_of(before, most[n][e]), own_by = share_of(sums.most[n][e], most[n][e]);
      total[n][e] = joined(sum, by, sums.total[n][e], own_by);
      if (row >= rows.count) continue;
      unsigned head = rows.head_of(row);
      Last last = last_of(most[n][e], total[n][e], a.p[3] ? at<const float>(a.p[3]) + head : nullptr);
      float* to = row_to(a.p[4], rows.span->first + rows.token_of(row), a.n[3]) + head * D;
      UNROLL for (int m = 0; m < sums.M; m++)
        UNROLL for (int h = 0; h < 2; h++) {
          float& y = to[column_of<D>(m) + h];
          float all = joined(is_first ? 0.f : y, by, sums.o[m][n][2 * h + e], own_by);
          y = is_last ? result_of(all, last) : all;
        }
    }
  if (is_last) return;
  sync_block();
  if (thread() < 4) {
    UNROLL for (int n = 0; n < N; n++)
      UNROLL for (int e = 0; e < 2; e++) {
        unsigned row = 8 * n + lane() % 4 * 2 + e;
        desk.totals[2 * row] = most[n][e], desk.totals[2 * row + 1] = total[n][e];
      }
  }
  sync_block();
}

// Rows of a tile over splits first … end of their sequence's keys.
template <int KV, int D, int N>
DEV void attend_rows(const Args& a, const Step* step, const Desk<D, N>& desk, const Rows& rows, unsigned first, unsigned end, uint32_t slot) {
  sync_block();  // of the tile before
  for (unsigned i = thread(); i < desk.ROWS * (D / 2); i += threads()) {
    unsigned row = i / (D / 2), column = i % (D / 2);
    uint32_t word = 0;
    if (row < rows.count) {
      const float* q = row_of(a.p[1], rows.span->first + rows.token_of(row), a.n[2]) + rows.head_of(row) * D + 2 * column;
      word = pair_of(q[0], q[1]);
    }
    desk.queries[row * desk.QUERIES_LD + column] = word;
  }
  unsigned context = rows.span->context, total = context + rows.span->len;
  for (unsigned row = thread(); row < desk.ROWS; row += threads())
    desk.ranges[row] = row < rows.count ? seen(a.n[4], a.n[5], context + rows.token_of(row), total) : Range{0, 0};
  sync_block();
  // (Later rows see no earlier keys, and no fewer.)
  Range before = desk.ranges[0], after = desk.ranges[rows.count - 1];
  if (slot == NONE && first < before.first / SPLIT_KEYS) first = before.first / SPLIT_KEYS;
  if (slot == NONE && end > (after.end + SPLIT_KEYS - 1) / SPLIT_KEYS) end = (after.end + SPLIT_KEYS - 1) / SPLIT_KEYS;
  const Cached cached(a, step, *rows.span, rows.shared);
  for (unsigned split = first; split < end; split++) {
    unsigned begin = split * SPLIT_KEYS, past = begin + SPLIT_KEYS;
    begin = begin > before.first ? begin : before.first, past = past < after.end ? past : after.end;
    Sums<D, N> sums;
    sum_split<KV, D, N>(a, cached, desk, begin, past, Range{after.first, before.end}, sums);
    if (slot != NONE)
      put_split<D, N>(a, rows, sums, slot + split - first);
    else
      join_split<D, N>(a, rows, desk, sums, split == first, split + 1 == end);
  }
}

// Sequences with few tokens, item by item. A block a head of keys, and every so many items.
template <int KV, int D, int N> DEV void attend_few(const Args& a) {
  DESK(desk, D, N);
  const Step* step = at<const Step>(a.p[0]);
  for (unsigned i = block_x(); i < step->items; i += blocks_x()) {
    const Item& item = array<Item>(step, step->item)[i];
    const Span& span = array<Span>(step, step->span)[item.span];
    unsigned heads = a.n[0] / a.n[1], all = span.len * heads;
    for (unsigned first = 0; first < all; first += desk.ROWS) {
      Rows rows = {&span, 0, first, all - first < desk.ROWS ? all - first : desk.ROWS, heads, block_y()};
      attend_rows<KV, D, N>(a, step, desk, rows, item.first, item.end, item.slot);
    }
  }
}

// Sequences with more tokens. A block a head of keys and some tokens of the step, the last ones first.
template <int KV, int D, int N> DEV void attend_many(const Args& a) {
  DESK(desk, D, N);
  const Step* step = at<const Step>(a.p[0]);
  unsigned own = a.n[12], tiles = (step->tokens + own - 1) / own;
  if (block_x() >= tiles) return;
  unsigned token = (tiles - 1 - block_x()) * own, past = token + own < step->tokens ? token + own : step->tokens;
  unsigned heads = a.n[0] / a.n[1];
  while (token < past) {
    const Span& span = array<Span>(step, step->span)[array(step, step->span_of)[token]];
    unsigned last = span.first + span.len < past ? span.first + span.len : past, all = (last - token) * heads;
    for (unsigned first = 0; span.len > FEW_TOKENS && first < all; first += desk.ROWS) {
      Rows rows = {&span, token - span.first, first, all - first < desk.ROWS ? all - first : desk.ROWS, heads, block_y()};
      attend_rows<KV, D, N>(a, step, desk, rows, 0, NONE, NONE);
    }
    token = last;
  }
}

// p: step, sums of splits, sinks, out
// n: heads, columns of a head, ld of out
// Sums of splits that attend_few has computed side by side, joined in their order. A block a token and head.
KERNEL(attend_join) {
  const Step* step = at<const Step>(a.p[0]);
  unsigned span = block_x() / FEW_TOKENS, token = block_x() % FEW_TOKENS, head = block_y(), dim = a.n[1];
  if (span >= step->spans) return;
  const Join& join = array<Join>(step, step->joins)[span];
  const Span& of = array<Span>(step, step->span)[span];
  if (join.splits == 0 || token >= of.len) return;
  size_t from_split = (size_t)FEW_TOKENS * a.n[0] * (2 + dim);
  const float* first = at<const float>(a.p[1]) + ((size_t)(join.slot * FEW_TOKENS + token) * a.n[0] + head) * (2 + dim);
  float* to = row_to(a.p[3], of.first + token, a.n[2]) + head * dim;
  const float* sink = a.p[2] ? at<const float>(a.p[2]) + head : nullptr;
  for (unsigned c = thread(); c < dim; c += threads()) {
    float most = -infinity(), total = 0.f, all = 0.f;
    const float* own = first;
    for (unsigned split = 0; split < join.splits; split++, own += from_split) {
      float greatest = fmaxf(most, own[0]), by = share_of(most, greatest), own_by = share_of(own[0], greatest);
      total = joined(total, by, own[1], own_by);
      all = joined(all, by, own[2 + c], own_by);
      most = greatest;
    }
    to[c] = result_of(all, last_of(most, total, sink));
  }
}

// As many rows in a block of attend_many as there are registers for.
#define OF_HEADS(kv, KV, D, N)                                          \
  KERNEL(attend_few_8_##kv##_##D) { attend_few<KV, D, 1>(a); }    \
  KERNEL(attend_few_16_##kv##_##D) { attend_few<KV, D, 2>(a); }   \
  KERNEL(attend_many_##kv##_##D) { attend_many<KV, D, N>(a); }
#define OF_FORMAT(kv, KV)   \
  OF_HEADS(kv, KV, 64, 6)   \
  OF_HEADS(kv, KV, 128, 6)  \
  OF_HEADS(kv, KV, 256, 3)
OF_FORMAT(bf16, KV_BF16)
OF_FORMAT(int8, KV_INT8)
