#include "support/emulated_device.hpp"

namespace scoremod::test {

// Each thread of a CTA is a context of its own that runs until it synchronizes with others. It then waits for the other
// 31 of its warp, or for the CTA, as the device does. All threads of a warp must wait for one thing. Warps run one
// after the other, in another order each time. Copies to shared memory are made as late as possible, so that a missing
// barrier or wait shows.
std::string_view emulated_primitives() {
  return R"(
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <setjmp.h>
#include <ucontext.h>
#include <algorithm>
#include <random>
#include <vector>

using Half = unsigned short;

namespace emulated {
struct Dim { unsigned x; };
struct Copy { void* to; const void* from; int bytes, copied, group; };
struct Thread {
  ucontext_t context;  // where it begins; from then on `place`, which leaves signals alone and is quick
  jmp_buf place;
  bool begun;
  std::vector<unsigned char> stack;
  std::vector<Copy> copies;
  int group;  // that the next copy belongs to
  bool done;
};
struct Warp {
  const char* meeting;
  int arrived;
  unsigned generation;
  uint64_t in[32][6];
  uint32_t out[32][4];
};
static std::vector<Thread> threads;
static std::vector<Warp> warps;
struct Team { int arrived, generation; };
static std::vector<Team> teams;
struct Meeting { int arrived, generation; bool any, result; };
static Meeting meetings[16];  // by their numbers
// Work beside the threads, if there is any: before a block, between turns (true if something happened), and after it.
static void (*begin_block)(size_t shared_bytes);
static bool (*go_on)(bool all_wait, unsigned random);
static void (*end_block)();
static jmp_buf scheduler;
static unsigned current, block, block_count;
static int events;  // that let threads go on

static std::vector<unsigned char> shared;
static void (*body)();
static unsigned short (*encode)(float, bool bf16);

inline void fail(const char* what, const char* more = "") {
  fprintf(stderr, "emulated device: %s %s (block %u, thread %u)\n", what, more, block, current);
  abort();
}
inline void give_way() {
  if (_setjmp(threads[current].place) == 0) _longjmp(scheduler, 1);
}
__attribute__((noinline)) void resume() {
  Thread& thread = threads[current];
  if (_setjmp(scheduler) != 0) return;
  if (thread.begun) _longjmp(thread.place, 1);
  thread.begun = true;
  setcontext(&thread.context);
}

// All threads of a warp call it; the last one computes.
template <class Compute>
void meet(const char* name, const Compute& compute) {
  Warp& warp = warps[current / 32];
  if (warp.arrived != 0 && warp.meeting != name) fail("threads of a warp meet for different things:", name);
  warp.meeting = name;
  const unsigned now = warp.generation;
  if (++warp.arrived == 32) {
    compute(warp);
    warp.arrived = 0;
    ++warp.generation;
    return;
  }
  while (warp.generation == now) give_way();
}
// Arrives at a meeting of `count` threads; returns its generation.
inline int arrive(int number, int count, bool condition) {
  Meeting& meeting = meetings[number];
  const int now = meeting.generation;
  meeting.any = meeting.any || condition;
  if (++meeting.arrived > count) fail("more threads at a barrier than it is for");
  if (meeting.arrived == count) {
    meeting.result = meeting.any;
    meeting.any = false;
    meeting.arrived = 0;
    ++meeting.generation;
    ++events;
  }
  return now;
}
inline bool meet_at(int number, int count, bool condition = false) {
  const int now = arrive(number, count, condition);
  while (meetings[number].generation == now) give_way();
  return meetings[number].result;
}
// Synchronizes the block's threads except producers.
inline bool block_meet(bool condition) {
  return kProducers == 0 ? meet_at(0, (int)threads.size(), condition) : meet_at(1, kWarps * 32, condition);
}
// The threads of some neighbouring warps.
inline void team_meet(int team, int count) {
  const int now = teams[team].generation;
  if (++teams[team].arrived == count) {
    teams[team].arrived = 0;
    ++teams[team].generation;
    ++events;
  }
  while (teams[team].generation == now) give_way();
}
static void run_thread() {
  body();
  if (!threads[current].copies.empty()) fail("a thread ends before its copies");
  threads[current].done = true;
  for (;;) give_way();
}

// One block after the other, in any order. Guards and everything in shared memory are NaN before.
template <class Body>
void run(Body all, long long blocks, int count, size_t shared_bytes, unsigned seed) {
  static Body kept = all;
  kept = all;
  body = [] { kept(); };
  std::mt19937 random(seed);
  threads.resize(count);
  warps.resize(count / 32);
  teams.resize(count / 32);
  constexpr size_t kGuard = 4096;
  block_count = (unsigned)blocks;
  std::vector<unsigned> turns(blocks);
  for (size_t i = 0; i < turns.size(); ++i) turns[i] = (unsigned)i;
  std::shuffle(turns.begin(), turns.end(), random);
  for (const unsigned turn : turns) {
    block = turn;
    shared.assign(shared_bytes + kGuard, 0xff);
    for (Meeting& meeting : meetings) meeting.arrived = 0;
    for (Warp& warp : warps) warp.arrived = 0;
    for (Team& team : teams) team.arrived = 0;
    if (begin_block != nullptr) begin_block(shared_bytes);
    for (Thread& thread : threads) {
      thread.stack.resize(1 << 18);
      thread.copies.clear();
      thread.done = thread.begun = false;
      thread.group = 0;
      getcontext(&thread.context);
      thread.context.uc_stack.ss_sp = thread.stack.data();
      thread.context.uc_stack.ss_size = thread.stack.size();
      makecontext(&thread.context, run_thread, 0);
    }
    std::vector<int> order(warps.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = (int)i;
    for (;;) {
      const int passed = events;
      std::shuffle(order.begin(), order.end(), random);
      bool progress = false;
      for (const int warp : order) {
        // Until all of the warp are at a barrier or at their end.
        for (;;) {
          const unsigned before = warps[warp].generation;
          for (unsigned lane = 0; lane < 32; ++lane) {
            current = warp * 32 + lane;
            if (!threads[current].done) resume();
          }
          if (warps[warp].generation == before) break;
          progress = true;
        }
      }
      if (std::all_of(threads.begin(), threads.end(), [](const Thread& t) { return t.done; })) break;
      progress = progress || events != passed;
      if (go_on != nullptr) progress = go_on(!progress, random()) || progress;
      if (!progress) fail("threads wait for each other forever");
    }
    if (end_block != nullptr) end_block();
    for (size_t i = shared_bytes; i < shared.size(); ++i)
      if (shared[i] != 0xff) fail("a write beyond shared memory");
  }
}
inline float value_of(Half bits, bool bf16) { return bf16 ? load_bf16(&bits, 0) : load_f16(&bits, 0); }
}  // namespace emulated

#define threadIdx (emulated::Dim{emulated::current})
#define blockIdx (emulated::Dim{emulated::block})
#define gridDim (emulated::Dim{emulated::block_count})
#define SCOREMOD_KERNEL(threads, blocks) static void
#define SCOREMOD_MEMBER inline
#define SCOREMOD_OUT_OF_LINE static
#define SCOREMOD_ARGUMENT const Arguments&
#define SCOREMOD_SHARED(name) unsigned char* const name = emulated::shared.data()

template <bool kTransposed>
void emulated_load(unsigned (&out)[4], const Half* row) {
  const unsigned lane = emulated::current % 32;
  emulated::Warp& warp = emulated::warps[emulated::current / 32];
  warp.in[lane][0] = (uint64_t)row;
  emulated::meet(kTransposed ? "transposed matrices" : "matrices", [](emulated::Warp& all) {
    for (int to = 0; to < 32; ++to)
      for (int m = 0; m < 4; ++m) {
        Half pair[2];
        for (int i = 0; i < 2; ++i) {
          const int from = kTransposed ? to % 4 * 2 + i : to / 4, column = kTransposed ? to / 4 : to % 4 * 2 + i;
          pair[i] = ((const Half*)all.in[m * 8 + from][0])[column];
        }
        all.out[to][m] = pair[0] | (uint32_t)pair[1] << 16;
      }
  });
  for (int m = 0; m < 4; ++m) out[m] = warp.out[lane][m];
}
inline void load_matrices(unsigned (&out)[4], const Half* row) { emulated_load<false>(out, row); }
inline void load_matrices_transposed(unsigned (&out)[4], const Half* row) { emulated_load<true>(out, row); }

template <bool kAreBf16 = kBf16>
inline void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const unsigned lane = emulated::current % 32;
  emulated::Warp& warp = emulated::warps[emulated::current / 32];
  for (int i = 0; i < 4; ++i) warp.in[lane][i] = a[i];
  warp.in[lane][4] = b0 | (uint64_t)b1 << 32;
  emulated::meet("a product", [](emulated::Warp& all) {
    float left[16][16], right[16][8];
    for (int from = 0; from < 32; ++from)
      for (int i = 0; i < 2; ++i) {
        const int row = from / 4, column = from % 4 * 2 + i;
        for (int part = 0; part < 4; ++part)
          left[row + part % 2 * 8][column + part / 2 * 8] =
              emulated::value_of((Half)(all.in[from][part] >> (16 * i)), kAreBf16);
        for (int part = 0; part < 2; ++part)
          right[column + part * 8][row] = emulated::value_of((Half)(all.in[from][4] >> (32 * part + 16 * i)), kAreBf16);
      }
    for (int to = 0; to < 32; ++to)
      for (int e = 0; e < 4; ++e) {
        float total = 0.0f;
        for (int k = 0; k < 16; ++k) total += left[to / 4 + e / 2 * 8][k] * right[k][to % 4 * 2 + e % 2];
        memcpy(&all.out[to][e], &total, 4);
      }
  });
  for (int e = 0; e < 4; ++e) {
    float total;
    memcpy(&total, &warp.out[lane][e], 4);
    sum[e] += total;
  }
}

// Reads the upper 11 digits of its factors, and cuts off what a sum is too short for.
inline void multiply_add_upper(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  const unsigned lane = emulated::current % 32;
  emulated::Warp& warp = emulated::warps[emulated::current / 32];
  for (int i = 0; i < 4; ++i) warp.in[lane][i] = a[i];
  warp.in[lane][4] = b0 | (uint64_t)b1 << 32;
  emulated::meet("a product of upper digits", [](emulated::Warp& all) {
    const auto upper = [](uint32_t bits) { return float_of_bits(bits & 0xffffe000u); };
    double left[16][8], right[8][8];
    for (int from = 0; from < 32; ++from)
      for (int half = 0; half < 2; ++half) {
        for (int part = 0; part < 2; ++part)
          left[from / 4 + part * 8][from % 4 + half * 4] = upper((uint32_t)all.in[from][part + 2 * half]);
        right[from % 4 + half * 4][from / 4] = upper((uint32_t)(all.in[from][4] >> (32 * half)));
      }
    for (int to = 0; to < 32; ++to)
      for (int e = 0; e < 4; ++e) {
        double total = 0;
        for (int k = 0; k < 8; ++k) total += left[to / 4 + e / 2 * 8][k] * right[k][to % 4 * 2 + e % 2];
        const float rounded = (float)total;
        memcpy(&all.out[to][e], &rounded, 4);
      }
  });
  for (int e = 0; e < 4; ++e) {
    float product;
    memcpy(&product, &warp.out[lane][e], 4);
    const double total = (double)sum[e] + product;
    const float rounded = (float)total;
    sum[e] = fabs((double)rounded) > fabs(total) ? nextafterf(rounded, 0.0f) : rounded;
  }
}

template <int kBytes>
void copy_ahead(void* shared, const void* from, int bytes) {
  if ((uintptr_t)shared % kBytes != 0 || (uintptr_t)from % kBytes != 0) emulated::fail("a copy that is not aligned");
  emulated::threads[emulated::current].copies.push_back(
      {shared, from, kBytes, bytes, emulated::threads[emulated::current].group});
}
inline void copy_line_ahead(void* shared, const void* from, int bytes) { copy_ahead<16>(shared, from, bytes); }
inline void emulated_copies(int end) {
  std::vector<emulated::Copy>& copies = emulated::threads[emulated::current].copies;
  for (const emulated::Copy& copy : copies) {
    if (copy.group >= end) continue;
    memset(copy.to, 0, copy.bytes);
    memcpy(copy.to, copy.from, copy.copied);
  }
  const auto made = [&](const emulated::Copy& copy) { return copy.group < end; };
  copies.erase(std::remove_if(copies.begin(), copies.end(), made), copies.end());
}
inline void end_copies() { ++emulated::threads[emulated::current].group; }
template <int kBut>
inline void wait_for_copies_but() { emulated_copies(emulated::threads[emulated::current].group - kBut); }
inline void wait_for_copies() { emulated_copies(emulated::threads[emulated::current].group + 1); }
template <int kTeamWarps>
inline void team_barrier(int team) { emulated::team_meet(team, 32 * kTeamWarps); }
inline void cta_sync() { emulated::meet_at(0, (int)emulated::threads.size()); }
inline void block_barrier() { emulated::block_meet(false); }
inline bool any_of_block(bool condition) { return emulated::block_meet(condition); }
inline unsigned ballot(bool condition) {
  const unsigned lane = emulated::current % 32;
  emulated::Warp& warp = emulated::warps[emulated::current / 32];
  warp.in[lane][0] = condition;
  emulated::meet("a ballot", [](emulated::Warp& all) {
    uint32_t bits = 0;
    for (int from = 0; from < 32; ++from) bits |= (uint32_t)all.in[from][0] << from;
    for (int to = 0; to < 32; ++to) all.out[to][0] = bits;
  });
  return warp.out[lane][0];
}
inline float exchange(float value, int lane_distance) {
  const unsigned lane = emulated::current % 32;
  emulated::Warp& warp = emulated::warps[emulated::current / 32];
  warp.in[lane][0] = 0;
  memcpy(&warp.in[lane][0], &value, 4);
  warp.in[lane][1] = lane_distance;
  emulated::meet("an exchange", [](emulated::Warp& all) {
    for (int to = 0; to < 32; ++to) all.out[to][0] = (uint32_t)all.in[to ^ all.in[to][1]][0];
  });
  memcpy(&value, &warp.out[lane][0], 4);
  return value;
}
inline unsigned exchange_bits(unsigned value, int lane_distance) {
  float bits;
  memcpy(&bits, &value, 4);
  bits = exchange(bits, lane_distance);
  memcpy(&value, &bits, 4);
  return value;
}
inline int from_lane(int value, int from) {
  const unsigned lane = emulated::current % 32;
  emulated::Warp& warp = emulated::warps[emulated::current / 32];
  warp.in[lane][0] = (uint32_t)value;
  warp.in[lane][1] = from;
  emulated::meet("another lane's value", [](emulated::Warp& all) {
    for (int to = 0; to < 32; ++to) all.out[to][0] = (uint32_t)all.in[all.in[to][1]][0];
  });
  return (int)warp.out[lane][0];
}
inline void order_memory() {}
inline unsigned long long exchange_word(unsigned long long* word, unsigned long long expected,
                                        unsigned long long instead) {
  const unsigned long long found = *word;
  if (found == expected) *word = instead;
  return found;
}
inline int bit_number(unsigned bit) { return __builtin_ctz(bit); }
inline float load_constant(const float* from) { return *from; }
inline unsigned bits_of(float x) {
  unsigned bits;
  memcpy(&bits, &x, 4);
  return bits;
}
/// ex2.approx.ftz: what is not a normal number is 0.
inline float exp2_of(float x) {
  const float value = exp2f(x);
  return value < 0x1p-126f ? 0.0f : value;
}
inline float multiply_add(float x, float y, float z) { return fmaf(x, y, z); }
inline unsigned bf16_pair_of(float low, float high) {
  return emulated::encode(low, true) | (unsigned)emulated::encode(high, true) << 16;
}
inline unsigned f16_pair_of(float low, float high) {
  return emulated::encode(low, false) | (unsigned)emulated::encode(high, false) << 16;
}
template <bool kAreBf16 = kBf16>
inline unsigned pair_of(float low, float high) {
  return kAreBf16 ? bf16_pair_of(low, high) : f16_pair_of(low, high);
}
inline unsigned bytes_of(unsigned x, unsigned y, unsigned selector) {
  const uint64_t both = x | (uint64_t)y << 32;
  unsigned bytes = 0;
  for (int i = 0; i < 4; ++i) bytes |= (unsigned)(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return bytes;
}
)";
}

/// The entry of the library: runs a kernel by its name, unless it reads more of its argument than there is. Gives the
/// bytes that a launch copies of the argument; none where no kernel has the name.
std::string_view emulated_entry() {
  return R"(
extern "C" size_t run_kernel(const char* name, const void* argument, size_t argument_bytes, long long blocks,
                             int threads, size_t shared_bytes, unsigned seed, unsigned short (*encode)(float, bool)) {
  emulated::encode = encode;
  const auto matches = [&](const char* kernel) { return strcmp(name, kernel) == 0; };
#define SCOREMOD_RUN(kernel, Given) \
  if (matches(#kernel)) { struct Body { const Given* p; void operator()() const { kernel(*p); } }; \
    if (sizeof(Given) <= argument_bytes) \
      emulated::run(Body{(const Given*)argument}, blocks, threads, shared_bytes, seed); \
    return sizeof(Given); }
)";
}

}  // namespace scoremod::test
