// Runs kernels that were built as plain C++: see host.h. A launch returns 0, or 1 where threads of a block wait for each
// other in vain.
#include <stdint.h>
#include <stdlib.h>

#include <memory>
#include <vector>

#include "args.h"
#include "host.h"

extern "C" void tokenmill_switch(void** save, void* to);

#if defined(__x86_64__)
asm(R"(
.text
.globl tokenmill_switch
.hidden tokenmill_switch
tokenmill_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  popq %rcx
  jmpq *%rcx
)");
constexpr size_t kSaved = 7;  // words on a stack that sleeps, the way back last
constexpr size_t kBack = 6;
#elif defined(__aarch64__)
asm(R"(
.text
.globl tokenmill_switch
.hidden tokenmill_switch
tokenmill_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
constexpr size_t kSaved = 20;
constexpr size_t kBack = 11;
#else
#error "fibers are written for x86-64 and aarch64"
#endif

namespace host {
namespace {

// (Stacks a power of two apart would all want the same lines of the cache.)
constexpr size_t kStack = (64 << 10) + 320, kShared = 256 << 10;
constexpr unsigned kMost = 256;

struct Fiber {
  Place place;
  void* stack = nullptr;  // where it sleeps
  size_t shared = 0;      // bytes of the block's memory it has declared
  uint32_t words = 0;     // how often it met its warp
  bool done = false;
};

// Two rounds of a warp's words: lanes may be one ahead.
struct Warp {
  uint32_t words[2][32];
  uint32_t arrived[2] = {0, 0}, made[2];
  float numbers[2][32][8];
  uint32_t operands[2][32][6];
};

using Body = void (*)(const Args&);

// What one thread of the system runs.
struct Runner {
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::unique_ptr<uint8_t[]> stacks, memory;
  Fiber* running = nullptr;
  void* home = nullptr;
  Body body = nullptr;
  const Args* args = nullptr;
  size_t of_launch = 0, most_shared = 4 << 10;
  uint32_t idle = 0, at_barrier = 0, barriers = 0;
  bool stuck = false;
};

thread_local Runner* made __attribute__((tls_model("initial-exec"))) = nullptr;

// Goes on with the next fiber that is not done; home when none is.
void next(Runner& r) {
  Fiber *from = r.running, *f = from, *end = r.fibers.data() + r.fibers.size();
  do {
    if (++f == end) f = r.fibers.data();
    if (!f->done) break;
  } while (f != from);
  if (f == from && !f->done) return;
  r.running = f;
  now = &f->place;
  tokenmill_switch(&from->stack, f == from ? r.home : f->stack);
}

// Lets others run; leaves the block when nobody gets on.
void wait(Runner& r) {
  if (++r.idle > 4 * r.fibers.size() + 8) {
    r.stuck = true;
    tokenmill_switch(&r.running->stack, r.home);
  }
  next(r);
}

void enter() {
  Runner& r = *made;
  r.body(*r.args);
  r.running->done = true;
  r.idle = 0;
  next(r);
  abort();  // nobody wakes what is done
}

void start(Fiber& f, uint8_t* stack) {
  void** top = reinterpret_cast<void**>((reinterpret_cast<uintptr_t>(stack) + kStack) & ~uintptr_t{15});
  top -= 1;  // as if it had been called
#if defined(__aarch64__)
  top -= 1;
#endif
  top -= kSaved;
  memset(top, 0, kSaved * sizeof(void*));
  top[kBack] = reinterpret_cast<void*>(&enter);
  f.stack = top;
}

}  // namespace

thread_local const Place* now __attribute__((tls_model("initial-exec"))) = nullptr;

void* shared(size_t bytes, bool of_launch) {
  Runner& r = *made;
  if (of_launch) return r.memory.get();
  size_t at = r.running->shared;
  r.running->shared = (at + bytes + 15) & ~size_t{15};
  if (r.of_launch + r.running->shared > kShared) abort();
  if (r.running->shared > r.most_shared) r.most_shared = r.running->shared;
  return r.memory.get() + r.of_launch + at;
}

void sync_block() {
  Runner& r = *made;
  uint32_t round = r.barriers;
  r.idle = 0;
  if (++r.at_barrier == r.fibers.size()) {
    r.at_barrier = 0;
    r.barriers++;
    return;
  }
  while (r.barriers == round) wait(r);
}

// Counts a lane's word in; true for the last of its warp.
static bool arrive(Runner& r, Warp& w, uint32_t round, uint32_t word) {
  // Every lane has come to the other round since, so that nobody reads this one any more.
  if (w.arrived[round] == 32) w.arrived[round] = 0;
  w.words[round][r.running->place.thread % 32] = word;
  r.idle = 0;
  return ++w.arrived[round] == 32;
}

const uint32_t* exchange(uint32_t word) {
  Runner& r = *made;
  Warp& w = r.warps[r.running->place.thread / 32];
  uint32_t round = r.running->words++ & 1;
  if (!arrive(r, w, round, word))
    while (w.arrived[round] != 32) wait(r);
  return w.words[round];
}

uint32_t join(uint32_t word, uint32_t (*make)(const uint32_t* words)) {
  Runner& r = *made;
  Warp& w = r.warps[r.running->place.thread / 32];
  uint32_t round = r.running->words++ & 1;
  if (arrive(r, w, round, word))
    w.made[round] = make(w.words[round]);
  else
    while (w.arrived[round] != 32) wait(r);
  return w.made[round];
}

// (Products are exact in f64, and their sum is rounded once; a GPU's are rounded otherwise.)
static void multiply(float (&c)[32][8], const uint32_t (&words)[32][6]) {
  float a[16][16], b[8][16];
  auto half = [](uint32_t word, unsigned i) { return float_of(i ? word & 0xffff0000u : word << 16); };
  for (unsigned l = 0; l < 32; l++)
    for (unsigned i = 0; i < 2; i++) {
      unsigned g = l / 4, k = 2 * (l % 4) + i;
      for (unsigned w = 0; w < 4; w++) a[g + w % 2 * 8][k + w / 2 * 8] = half(words[l][w], i);
      for (unsigned w = 0; w < 2; w++) b[g][k + w * 8] = half(words[l][4 + w], i);
    }
  for (unsigned l = 0; l < 32; l++)
    for (unsigned i = 0; i < 4; i++) {
      double sum = c[l][i];
      const float *row = a[l / 4 + i / 2 * 8], *column = b[2 * (l % 4) + i % 2];
      for (unsigned k = 0; k < 16; k++) sum += (double)row[k] * column[k];
      c[l][i] = (float)sum;
    }
}

void mma(float* c, const uint32_t* words) {
  Runner& r = *made;
  Warp& w = r.warps[r.running->place.thread / 32];
  uint32_t round = r.running->words++ & 1, lane = r.running->place.thread % 32;
  memcpy(w.numbers[round][lane], c, 4 * sizeof(float));
  memcpy(w.operands[round][lane], words, 6 * sizeof(uint32_t));
  if (arrive(r, w, round, 0))
    multiply(w.numbers[round], w.operands[round]);
  else
    while (w.arrived[round] != 32) wait(r);
  memcpy(c, w.numbers[round][lane], 4 * sizeof(float));
}

void join_sums(float* numbers, unsigned count) {
  Runner& r = *made;
  Warp& w = r.warps[r.running->place.thread / 32];
  uint32_t round = r.running->words++ & 1;
  float(&all)[32][8] = w.numbers[round];
  memcpy(all[r.running->place.thread % 32], numbers, count * sizeof(float));
  if (arrive(r, w, round, 0)) {
    for (unsigned d = 16; d > 0; d >>= 1)
      for (unsigned i = 0; i < d; i++)
        for (unsigned k = 0; k < count; k++) all[i][k] += all[i + d][k];
  } else {
    while (w.arrived[round] != 32) wait(r);
  }
  memcpy(numbers, all[0], count * sizeof(float));
}

}  // namespace host

using namespace host;

extern "C" __attribute__((visibility("default"))) int tokenmill_launch(
    Body body, const uint32_t* grid, uint32_t threads, uint32_t shared, const Args* args) {
  // (Kept as long as the thread lives, which is that of a test.)
  if (!made) made = new Runner;
  Runner& r = *made;
  if (threads == 0 || threads > kMost || threads % 32 || shared > kShared) return 2;
  if (grid[1] > 65535 || grid[2] > 65535) return 2;  // what a GPU takes
  if (!r.stacks) r.stacks.reset(new uint8_t[kStack * kMost]);
  if (!r.memory) r.memory.reset(new uint8_t[kShared]);
  r.body = body;
  r.args = args;
  r.of_launch = (shared + 15) & ~size_t{15};
  for (uint32_t z = 0; z < grid[2]; z++)
    for (uint32_t y = 0; y < grid[1]; y++)
      for (uint32_t x = 0; x < grid[0]; x++) {
        r.fibers.assign(threads, Fiber());
        r.warps.resize(threads / 32);
        for (Warp& w : r.warps) w.arrived[0] = w.arrived[1] = 0;
        // What nobody has written is not a number.
        memset(r.memory.get(), 0xff, kShared < r.of_launch + r.most_shared ? kShared : r.of_launch + r.most_shared);
        r.idle = r.at_barrier = r.barriers = 0;
        r.stuck = false;
        for (uint32_t t = 0; t < threads; t++) {
          r.fibers[t].place = Place{t, threads, x, y, z, grid[0], grid[1], grid[2]};
          start(r.fibers[t], r.stacks.get() + kStack * t);
        }
        r.running = &r.fibers[0];
        now = &r.running->place;
        tokenmill_switch(&r.home, r.running->stack);
        if (r.stuck) return 1;
      }
  return 0;
}
