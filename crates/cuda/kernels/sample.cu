// Tokens chosen from logits: ir::sampling, bit for bit. A row is cut into runs of CHUNK tokens, whose sums are those of
// ir::math::sum_by; what depends on an order (a running sum, ties) keeps it, or is done again in it where that could show.
#include "math.cuh"
#include "numbers.cuh"

static constexpr unsigned CHUNK = 4096;  // ir::math::VOCAB_CHUNK
static constexpr unsigned MANY = 1024;   // candidates that are sorted together
static constexpr unsigned NONE = 0xffffffffu;

DEV bool is_penalised(const Want& w) { return w.repetition != 1.f || w.presence != 0.f || w.frequency != 0.f; }
DEV bool is_drawn(const Want& w) { return w.kind == SAMPLE && w.temperature != 0.f; }
// Whether a token is drawn in the order of ids, from all of them.
DEV bool is_by_id(const Want& w) { return w.top_k == 0 && w.top_p >= 1.f; }

// A logit after its biases: of an id by the thread whose it is, in their order.
DEV void add_biases(const Step* step, const Want& want, float* x, unsigned first, unsigned len) {
  const uint32_t* pairs = array(step, step->bias) + 2 * want.bias[0];
  for (unsigned i = 0; i < want.bias[1]; i++) {
    unsigned at = pairs[2 * i] - first;
    if (at < len && at % threads() == thread()) x[at] = add_rn(x[at], float_of(pairs[2 * i + 1]));
  }
}

static constexpr uint32_t SEEN = 1u << 31;

// Counts in `seen` how often tokens of the run were generated, and marks those that occur at all.
DEV void count_history(const Step* step, const Want& want, uint32_t* seen, unsigned first, unsigned len) {
  for (unsigned i = thread(); i < len; i += threads()) seen[i] = 0;
  sync_block();
  const uint32_t* history = array(step, step->history) + want.history[0];
  for (unsigned i = thread(); i < want.history[1]; i += threads()) {
    unsigned at = history[i] - first;
    if (at < len && i >= want.history[2]) count_in(&seen[at], 1);
  }
  sync_block();
  for (unsigned i = thread(); i < want.history[1]; i += threads()) {
    unsigned at = history[i] - first;
    if (at < len) mark_in(&seen[at], SEEN);
  }
  sync_block();
}

DEV float penalised(const Want& want, uint32_t seen, float x) {
  if (!(seen & SEEN)) return x;
  if (want.repetition != 1.f) x = x > 0.f ? div_rn(x, want.repetition) : mul_rn(x, want.repetition);
  uint32_t times = seen & ~SEEN;
  return times ? sub_rn(x, add_rn(want.presence, mul_rn(want.frequency, (float)times))) : x;
}

// p: step, logits, logits as they are drawn from, chunks
// n: tokens, ld of logits, runs a row
// A block a run and an output: bias, penalties, mask, and the greatest.
KERNEL(sample_adjust) {
  SHARED(float, x, CHUNK);
  SHARED(uint32_t, seen, CHUNK);
  SHARED(float, bests, 8);
  SHARED(uint32_t, places, 8);
  SHARED(float, mosts, 8);
  SHARED(uint32_t, nans, 1);
  const Step* step = at<const Step>(a.p[0]);
  unsigned row = block_y(), first = block_x() * CHUNK, len = a.n[0] - first < CHUNK ? a.n[0] - first : CHUNK;
  if (row >= step->outputs) return;
  const Want& want = array<Want>(step, step->wants)[row];
  if (want.kind == NOTHING) return;
  const float* logits = row_of(a.p[1], row, a.n[1]) + first;
  float most = -infinity(), best = -infinity();
  uint32_t place = NONE, own_nans = 0;
  for (unsigned i = thread(); i < len; i += threads()) {
    x[i] = logits[i];
    if (x[i] != x[i]) own_nans |= 2;
    if (x[i] > most) most = x[i];
  }
  if (thread() == 0) nans[0] = 0;
  if (want.kind == SAMPLE) {
    add_biases(step, want, x, first, len);
    if (is_penalised(want)) count_history(step, want, seen, first, len);
    const uint32_t* mask = array(step, step->masks) + (size_t)want.mask * ((a.n[0] + 31) / 32) + first / 32;
    float* drawn = row_to(a.p[2], row, a.n[0]) + first;
    for (unsigned i = thread(); i < len; i += threads()) {
      float y = is_penalised(want) ? penalised(want, seen[i], x[i]) : x[i];
      if (want.mask != NONE && !(mask[i / 32] >> (i % 32) & 1)) y = -infinity();
      if (y != y) own_nans |= 1;
      if (y > best) best = y, place = first + i;
      if (is_drawn(want)) drawn[i] = y;
    }
  }
  warp_best(best, place);
  most = warp_max(most);
  sync_block();
  if (own_nans) mark_in(&nans[0], own_nans);
  if (lane() == 0) bests[warp()] = best, places[warp()] = place, mosts[warp()] = most;
  sync_block();
  if (thread() != 0) return;
  for (unsigned w = 1; w < threads() / 32; w++) {
    if (bests[w] > best || (bests[w] == best && places[w] < place)) best = bests[w], place = places[w];
    most = fmaxf(most, mosts[w]);
  }
  Chunk& chunk = at<Chunk>(a.p[3])[(size_t)row * a.n[2] + block_x()];
  chunk.best = best, chunk.best_at = place, chunk.most = most, chunk.nans = nans[0];
}

// What the runs of a row have found.
struct Found {
  float best, most;
  uint32_t best_at, nans;

  // Whether log-probabilities exist, and a token does.
  DEV_IN bool has_sum() const { return !(nans & 2) && most > -infinity() && most < infinity(); }
  DEV_IN bool has_best() const { return !(nans & 1) && best_at != NONE && best < infinity(); }
};

DEV Found found_in(const Chunk* chunks, unsigned count) {
  Found f = {-infinity(), -infinity(), NONE, 0};
  for (unsigned c = 0; c < count; c++) {
    // (Runs come in the order of ids.)
    if (chunks[c].best > f.best) f.best = chunks[c].best, f.best_at = chunks[c].best_at;
    f.most = fmaxf(f.most, chunks[c].most);
    f.nans |= chunks[c].nans;
  }
  return f;
}

// Sums of two runs by the first warp, each as ir::math::sum_by has it: lane l of 16 adds numbers l, l + 16, …
DEV float sum_of_run(const float* one, const float* two, unsigned len) {
  const float* x = lane() < 16 ? one : two;
  float sum = 0.f;
  for (unsigned i = lane() % 16; i < len; i += 16) sum = add_rn(sum, x[i]);
  for (unsigned d = 8; d > 0; d >>= 1) sum = add_rn(sum, across(sum, d));
  return sum;
}

// p, n: as of sample_adjust
// A block a run and an output: what each token weighs, and the sums of that.
KERNEL(sample_weigh) {
  SHARED(float, weights, CHUNK);
  SHARED(float, own, CHUNK);
  SHARED(double, wide, 256);
  const Step* step = at<const Step>(a.p[0]);
  unsigned row = block_y(), first = block_x() * CHUNK, len = a.n[0] - first < CHUNK ? a.n[0] - first : CHUNK;
  if (row >= step->outputs) return;
  const Want& want = array<Want>(step, step->wants)[row];
  bool told = want.tops || want.kind == SCORE, drawn = is_drawn(want);
  if (want.kind == NOTHING || (!told && !drawn)) return;
  Chunk* chunks = at<Chunk>(a.p[3]) + (size_t)row * a.n[2];
  Found found = found_in(chunks, a.n[2]);
  told = told && found.has_sum(), drawn = drawn && found.has_best();
  const float* logits = row_of(a.p[1], row, a.n[1]) + first;
  float* x = row_to(a.p[2], row, a.n[0]) + first;
  double sum = 0.0;
  for (unsigned i = thread(); i < len; i += threads()) {
    own[i] = told ? exact_exp(sub_rn(logits[i], found.most)) : 0.f;
    float weight = 0.f;
    if (drawn) {
      float y = div_rn(sub_rn(x[i], found.best), want.temperature);
      weight = exact_exp(y);
      if (is_by_id(want) && weight < want.min_p) weight = 0.f;
      x[i] = is_by_id(want) ? weight : y;
      sum = add_rn(sum, (double)weight);
    }
    weights[i] = weight;
  }
  wide[thread()] = sum;
  sync_block();
  if (warp() == 0) {
    float both = sum_of_run(weights, own, len);
    if (lane() == 0) chunks[block_x()].sum = both;
    if (lane() == 16) chunks[block_x()].own_sum = both;
  }
  if (thread() == 32) {
    for (unsigned i = 0; i < threads(); i++) sum = add_rn(i ? sum : 0.0, wide[i]);
    chunks[block_x()].wide = sum;
  }
}

// The best of `count` numbers whose keys are below `below`, sorted by key: at least `want` of them, which is at most MANY, if there
// are so many, and at most MANY. Returns how many; `bins` holds 258 words.
DEV unsigned next_best(const float* x, unsigned count, uint64_t below, unsigned want, uint64_t* list, uint32_t* bins) {
  uint64_t least = 0;  // what is taken is at least that
  unsigned above = 0, shift = 64;
  for (bool more = true; more;) {
    uint64_t prefix = shift == 64 ? 0 : least >> shift;
    for (unsigned i = thread(); i < 256; i += threads()) bins[i] = 0;
    sync_block();
    for (unsigned i = thread(); i < count; i += threads()) {
      uint64_t key = key_of(x[i], i);
      if (key < below && (shift == 64 || key >> shift == prefix)) count_in(&bins[key >> (shift - 8) & 255], 1);
    }
    sync_block();
    shift -= 8;
    unsigned digit = 256, more_above = above, in = 0;
    while (digit > 0 && more_above + in < want) more_above += in, in = bins[--digit];
    // (Fewer than wanted are left: all of them.)
    least |= (uint64_t)digit << shift;
    more = more_above + in > MANY;
    above = more_above;
    sync_block();
  }
  if (thread() == 0) bins[256] = 0;
  sync_block();
  for (unsigned i = thread(); i < count; i += threads()) {
    uint64_t key = key_of(x[i], i);
    if (key < below && key >= least) list[count_in(&bins[256], 1)] = key;
  }
  sync_block();
  unsigned n = bins[256], padded = 32;
  while (padded < n) padded *= 2;
  for (unsigned i = n + thread(); i < padded; i += threads()) list[i] = 0;
  // Bitonic: runs of `run` are sorted, down and up in turns.
  for (unsigned run = 2; run <= padded; run *= 2)
    for (unsigned distance = run / 2; distance > 0; distance /= 2) {
      sync_block();
      for (unsigned k = thread(); k < padded / 2; k += threads()) {
        unsigned i = k / distance * 2 * distance + k % distance, j = i + distance;
        uint64_t one = list[i], two = list[j];
        if ((one < two) == ((i & run) == 0)) list[i] = two, list[j] = one;
      }
    }
  sync_block();
  return n;
}

// Memory of a block that chooses.
struct Desk {
  uint64_t* list;   // [MANY]
  float* weights;   // [MANY]
  uint32_t* bins;   // [258]
  double* wide;     // [256]
  uint32_t* told;   // [2]: what thread 0 has all know
};

// The first token at which the running sum of weights, in the order of ids, is beyond `target`; of none the last that weighs
// anything. By one thread, as ir::sampling does it.
DEV unsigned pick_in_order(const float* x, unsigned count, double target) {
  double sum = 0.0;
  unsigned last = NONE;
  for (unsigned i = 0; i < count; i++) {
    if (!(x[i] > 0.f)) continue;
    sum = add_rn(sum, (double)x[i]);
    last = i;
    if (sum > target) break;
  }
  return last;
}

// The same in few steps: running sums of runs of tokens differ from those in order by less than `margin`; where that could decide,
// they are added in order.
DEV unsigned pick_by_id(const float* x, unsigned count, const Chunk* chunks, unsigned runs, double target, const Desk& desk) {
  double all = 0.0, before = 0.0;
  for (unsigned c = 0; c < runs; c++) all = add_rn(all, chunks[c].wide);
  double margin = (double)(count + 1024) * 0x1p-52 * all;
  unsigned c = 0;
  while (c < runs && !(add_rn(before, chunks[c].wide) > target)) before = add_rn(before, chunks[c++].wide);
  unsigned first = c * CHUNK, len = c == runs ? 0 : count - first < CHUNK ? count - first : CHUNK, own = CHUNK / threads();
  double sum = 0.0;
  for (unsigned i = own * thread(); i < own * (thread() + 1) && i < len; i++) sum = add_rn(sum, (double)x[first + i]);
  desk.wide[thread()] = sum;
  sync_block();
  if (thread() == 0) {
    unsigned t = 0, at = NONE;
    while (t < threads() && !(add_rn(before, desk.wide[t]) > target)) before = add_rn(before, desk.wide[t++]);
    bool sure = false;
    for (unsigned i = own * t; i < own * (t + 1) && i < len; i++) {
      double next = add_rn(before, (double)x[first + i]);
      if (x[first + i] > 0.f && next > target) {
        at = first + i;
        sure = next - margin > target && before + margin <= target;
        break;
      }
      before = next;
    }
    desk.told[0] = sure ? at : pick_in_order(x, count, target);
  }
  sync_block();
  return desk.told[0];
}

enum { TOTAL, MEASURE, PICK, ENDED };

// Draws from the best tokens, best first: passes over candidates in order, MANY at a time.
struct Sorted {
  const Want& want;
  unsigned limit;       // candidates at most
  double total, wanted;  // probability in all, and of those that take part
  double mass, sum, target;
  unsigned count;  // that take part
  uint32_t last;

  // Goes on with `n` candidates; whether the pass ends.
  DEV_IN bool walk(unsigned pass, const Desk& desk, unsigned taken, unsigned n) {
    for (unsigned i = 0; i < n; i++) {
      float p = desk.weights[i];
      if (pass == TOTAL) {
        total = add_rn(total, (double)p);
      } else if (pass == MEASURE) {
        if (count > 0 && p < want.min_p) return true;
        mass = add_rn(mass, (double)p);
        count++;
        if (mass >= wanted) return true;
      } else {
        if (taken + i >= count) return true;
        if (!(p > 0.f)) continue;
        sum = add_rn(sum, (double)p);
        last = id_of(desk.list[i]);
        if (sum > target) return true;
      }
    }
    return false;
  }
};

DEV unsigned pick_sorted(const Want& want, const float* x, unsigned vocab, double total, double u, const Desk& desk) {
  unsigned limit = want.top_k == 0 || want.top_k > vocab ? vocab : want.top_k;
  Sorted s = {want, limit, total, 0.0, 0.0, 0.0, 0.0, 0, NONE};
  unsigned held = 0;  // the first candidates, where they are at hand
  for (unsigned pass = want.top_k ? TOTAL : MEASURE; pass < ENDED; pass++) {
    if (pass == TOTAL) s.total = 0.0;
    if (pass == MEASURE) s.wanted = mul_rn((double)want.top_p, s.total);
    if (pass == PICK) s.target = mul_rn(u, s.mass);
    uint64_t below = ~0ull;
    for (unsigned taken = 0; taken < limit;) {
      unsigned n = held, wished = want.top_k ? MANY : 256;
      if (taken > 0 || held == 0) {
        n = next_best(x, vocab, below, limit - taken < wished ? limit - taken : wished, desk.list, desk.bins);
        if (n > limit - taken) n = limit - taken;
        if (n == 0) break;
        for (unsigned i = thread(); i < n; i += threads()) desk.weights[i] = exact_exp(value_of(desk.list[i]));
        held = taken == 0 ? n : 0;
        sync_block();
      }
      if (thread() == 0) desk.told[1] = s.walk(pass, desk, taken, n);
      sync_block();
      bool ended = desk.told[1];
      below = desk.list[n - 1];
      taken += n;
      sync_block();
      if (ended) break;
    }
  }
  if (thread() == 0) desk.told[0] = s.last;
  sync_block();
  return desk.told[0];
}

DEV double number_of(const uint32_t (&words)[2]) { return double_of((uint64_t)words[1] << 32 | words[0]); }

// p: as of sample_adjust, then what is chosen
// n: as of sample_adjust, then words of what is chosen
// A block an output.
KERNEL(sample_choose) {
  SHARED(uint64_t, list, MANY);
  SHARED(float, weights, MANY);
  SHARED(uint32_t, bins, 258);
  SHARED(double, wide, 256);
  SHARED(uint32_t, shared, 2);
  Desk desk = {list, weights, bins, wide, shared};
  const Step* step = at<const Step>(a.p[0]);
  unsigned row = block_x(), vocab = a.n[0];
  if (row >= step->outputs) return;
  const Want& want = array<Want>(step, step->wants)[row];
  if (want.kind == NOTHING) return;
  const Chunk* chunks = at<const Chunk>(a.p[3]) + (size_t)row * a.n[2];
  const float *logits = row_of(a.p[1], row, a.n[1]), *x = row_of(a.p[2], row, vocab);
  uint32_t* out = at<uint32_t>(a.p[4]) + (size_t)row * a.n[3];
  Found found = found_in(chunks, a.n[2]);
  bool told = want.tops || want.kind == SCORE, valid = !told || found.has_sum();
  Chosen chosen = {0, 0.f, 0, 0};
  double lse = 0.0;
  if (told && valid) {
    double total = 0.0;
    for (unsigned c = 0; c < a.n[2]; c++) total = add_rn(total, (double)chunks[c].own_sum);
    lse = exact_ln(total);
    unsigned n = want.tops - 1 < vocab ? want.tops - 1 : vocab;
    if (n) next_best(logits, vocab, ~0ull, n, list, bins);
    for (unsigned i = thread(); i < n; i += threads()) {
      float logprob = (float)((double)sub_rn(value_of(list[i]), found.most) - lse);
      out[4 + 2 * i] = id_of(list[i]), out[5 + 2 * i] = bits_of(logprob);
    }
    chosen.tops = n;
    sync_block();
  }
  unsigned token = NONE;
  if (want.kind == SCORE) {
    token = want.target;
  } else if (valid && found.has_best()) {
    double total = 0.0, u = number_of(want.number);
    for (unsigned c = 0; c < a.n[2]; c++) total = add_rn(total, (double)chunks[c].sum);
    if (!is_drawn(want)) token = found.best_at;
    else if (is_by_id(want)) token = pick_by_id(x, vocab, chunks, a.n[2], mul_rn(u, total), desk);
    else token = pick_sorted(want, x, vocab, total, u, desk);
  }
  if (thread() != 0) return;
  if (valid && token < vocab) {
    chosen.token = token, chosen.valid = 1;
    if (told) chosen.logprob = (float)((double)sub_rn(logits[token], found.most) - lse);
  }
  *reinterpret_cast<Chosen*>(out) = chosen;
}
