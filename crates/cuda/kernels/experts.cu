// Which experts a token has, which tokens an expert has, and the sum of what they gave.
#include "numbers.cuh"

enum { SOFTMAX, SOFTMAX_OF_TOP, SIGMOIDS };
enum { FREE = 0, TAKEN = 1 };

// The greatest of `count` numbers that is not taken, the lowest of equals; what is no number comes last. All lanes get its place.
DEV unsigned best_of(const float* x, const uint8_t* taken, unsigned count) {
  float best = -infinity();
  uint32_t place = 0xffffffffu;
  for (unsigned i = lane(); i < count; i += 32)
    if (!taken[i] && (place == 0xffffffffu || x[i] > best)) best = x[i], place = i;
  warp_best(best, place);
  return place < count ? place : 0;
}

// Puts experts outside the `keep` groups with the greatest sum of their `best` best scores at −∞.
DEV void keep_groups(float* choice, uint8_t* taken, float* totals, unsigned experts, unsigned groups, unsigned keep, unsigned best) {
  unsigned size = experts / groups;
  for (unsigned g = 0; g < groups; g++) {
    float total = 0.f;
    for (unsigned i = 0; i < best; i++) {
      unsigned e = g * size + best_of(choice + g * size, taken + g * size, size);
      total += choice[e];
      sync_warp();
      if (lane() == 0) taken[e] = TAKEN;
      sync_warp();
    }
    if (lane() == 0) totals[g] = total;
  }
  sync_warp();
  for (unsigned e = lane(); e < experts; e += 32) taken[e] = FREE;
  sync_warp();
  // The groups' own marks stand behind those of the experts.
  for (unsigned g = lane(); g < groups; g += 32) taken[experts + g] = FREE;
  sync_warp();
  for (unsigned i = 0; i < keep; i++) {
    unsigned g = best_of(totals, taken + experts, groups);
    sync_warp();
    if (lane() == 0) taken[experts + g] = TAKEN;
    sync_warp();
  }
  for (unsigned e = lane(); e < experts; e += 32)
    if (taken[experts + e / size] == FREE) choice[e] = -infinity();
  sync_warp();
}

// p: step, logits, choice bias, gains, out
// n: experts, top, score, groups (0: none), groups kept, best of a group, whether weights are made to sum to 1, ld of logits, out
// f: scale
// A warp a token. Memory: scores, choices, totals of groups, weights [top], then marks.
KERNEL(route) {
  DYNAMIC(float, scores);
  unsigned token = block_x(), experts = a.n[0], top = a.n[1], groups = a.n[3];
  if (token >= at<const Step>(a.p[0])->tokens) return;
  float *choice = scores + experts, *totals = choice + experts, *weights = totals + groups;
  uint8_t* taken = reinterpret_cast<uint8_t*>(weights + top);
  const float* logits = row_of(a.p[1], token, a.n[7]);
  float most = -infinity(), sum = 0.f;
  for (unsigned e = lane(); e < experts; e += 32) most = fmaxf(most, logits[e]);
  most = warp_max(most);
  for (unsigned e = lane(); e < experts; e += 32) sum += expf(logits[e] - most);
  sum = warp_sum(sum);
  for (unsigned e = lane(); e < experts; e += 32) {
    float score = a.n[2] == SOFTMAX ? expf(logits[e] - most) / sum : a.n[2] == SIGMOIDS ? sigmoid(logits[e]) : logits[e];
    scores[e] = score;
    choice[e] = score + (a.p[2] ? at<const float>(a.p[2])[e] : 0.f);
    taken[e] = FREE;
  }
  sync_warp();
  if (groups) keep_groups(choice, taken, totals, experts, groups, a.n[4], a.n[5]);
  float* out = row_to(a.p[4], token, a.n[8]);
  for (unsigned i = 0; i < top; i++) {
    unsigned e = best_of(choice, taken, experts);
    sync_warp();
    if (lane() == 0) taken[e] = TAKEN, weights[i] = scores[e], out[i] = (float)e;
    sync_warp();
  }
  if (lane() != 0) return;
  float total = 0.f;
  if (a.n[2] == SOFTMAX_OF_TOP) {
    float first = weights[0];
    for (unsigned i = 0; i < top; i++) first = fmaxf(first, weights[i]);
    for (unsigned i = 0; i < top; i++) total += weights[i] = expf(weights[i] - first);
    for (unsigned i = 0; i < top; i++) weights[i] /= total;
  }
  total = 0.f;
  for (unsigned i = 0; i < top; i++) total += weights[i];
  for (unsigned i = 0; i < top; i++) {
    float w = a.n[6] ? weights[i] / (total + 1e-20f) : weights[i];
    float gain = a.p[3] ? at<const float>(a.p[3])[(unsigned)out[i]] : 1.f;
    out[top + i] = w * a.f[0] * gain;
  }
}

// p: step, route, starts, pairs, experts that have pairs: how many, and which
// n: experts, top, ld of route
// A warp an expert: its pairs of a token and a slot, in order, behind those of the experts before it. A lane looks at a run.
// Memory: a bit an expert.
KERNEL(sort_pairs) {
  DYNAMIC(uint32_t, marks);
  SHARED(uint32_t, before, 32);
  SHARED(uint32_t, own, 32);
  unsigned e = block_x(), top = a.n[1], all = at<const Step>(a.p[0])->tokens * top;
  unsigned run = (all + 31) / 32, first = lane() * run, end = first + run < all ? first + run : all;
  unsigned less = 0, mine = 0, words = (a.n[0] + 31) / 32;
  for (unsigned w = lane(); w < words; w += 32) marks[w] = 0;
  sync_warp();
  for (unsigned i = first; i < end; i++) {
    unsigned chosen = (unsigned)row_of(a.p[1], i / top, a.n[2])[i % top];
    less += chosen < e;
    mine += chosen == e;
    mark_in(&marks[chosen / 32], 1u << chosen % 32);
  }
  before[lane()] = less;
  own[lane()] = mine;
  sync_warp();
  unsigned start = 0, to = 0;
  for (unsigned l = 0; l < 32; l++) {
    start += before[l];
    if (l < lane()) to += own[l];
  }
  unsigned rank = 0;
  for (unsigned w = 0; w < e / 32; w++) rank += bits_in(marks[w]);
  rank += bits_in(marks[e / 32] & ((1u << e % 32) - 1));
  bool is_chosen = marks[e / 32] >> e % 32 & 1;
  if (lane() == 0 && is_chosen) at<uint32_t>(a.p[4])[1 + rank] = e;
  if (lane() == 0 && e + 1 == a.n[0]) at<uint32_t>(a.p[4])[0] = rank + is_chosen;
  uint32_t* starts = at<uint32_t>(a.p[2]);
  if (lane() == 0) starts[e] = start;
  if (lane() == 31 && e + 1 == a.n[0]) starts[e + 1] = start + to + mine;
  uint32_t* pairs = at<uint32_t>(a.p[3]) + start + to;
  for (unsigned i = first; i < end; i++)
    if ((unsigned)row_of(a.p[1], i / top, a.n[2])[i % top] == e) *pairs++ = i;
}

// p: step, route, rows of pairs, out
// n: columns, top, ld of route, pairs, out
KERNEL(combine) {
  size_t i = (size_t)block_x() * threads() + thread();
  unsigned token = (unsigned)(i / a.n[0]), c = (unsigned)(i % a.n[0]), top = a.n[1];
  if (token >= at<const Step>(a.p[0])->tokens) return;
  const float* route = row_of(a.p[1], token, a.n[2]);
  float sum = 0.f;
  for (unsigned s = 0; s < top; s++) sum = fmaf(route[top + s], row_of(a.p[2], token * top + s, a.n[3])[c], sum);
  row_to(a.p[3], token, a.n[4])[c] = sum;
}
