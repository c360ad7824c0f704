// The state of an emulated device, for its own files.
#pragma once

#include <algorithm>
#include <setjmp.h>
#include <ucontext.h>
#include <vector>

#include "emulated/emulated.hpp"

namespace emulated {

struct Copy {
  void* to;
  const void* from;
  int bytes, copied, group;
};
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

extern std::vector<Thread> threads;
extern std::vector<Warp> warps;
extern std::vector<unsigned char> shared_memory;
extern int events;  // that let threads go on
extern bool has_bf16;

// Work beside the threads, if there is any: before a block, between turns (true if something happened), and after it.
struct Beside {
  void (*begin_block)();
  bool (*go_on)(bool all_wait, unsigned random);
  void (*end_block)();
};
extern Beside beside;

/// Lets other threads run.
void give_way();

/// The running thread's warp, and its lane there.
inline Warp& own_warp() { return warps[current / 32]; }
inline unsigned own_lane() { return current % 32; }

/// All threads of a warp call it; the last one computes.
template <class Compute>
void meet(const char* name, const Compute& compute) {
  Warp& warp = own_warp();
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

inline void make(const Copy& copy) {
  memset(copy.to, 0, copy.bytes);
  memcpy(copy.to, copy.from, copy.copied);
}

inline float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

inline float number_of_f16(Half half) {
  const uint32_t bits = half, sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of_bits(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude >= 0x0400u) return float_of_bits(sign | ((magnitude << 13) + (112u << 23)));
  return (sign != 0 ? -1.0f : 1.0f) * (float)magnitude * 0x1p-24f;
}
inline float number_of(Half bits, bool bf16) {
  return bf16 ? float_of_bits((uint32_t)bits << 16) : number_of_f16(bits);
}

// Addresses of shared memory, which begins where nothing is aligned but to 16 bytes.
inline unsigned swizzled(unsigned address) { return address ^ (address >> 7 & 7) << 4; }
unsigned char* byte_at(unsigned address);

/// A step of a WGMMA that a thread asked for.
struct Step {
  float (*sums)[4];
  int columns;
  Factor a;
  unsigned b;
  bool adds, saved;
  Element element;
  std::vector<float> before;

  float sum_before(int n, int e) const { return !adds ? 0.0f : saved ? before[n * 4 + e] : sums[n][e]; }
};
/// The step of a warp's lanes, which have 16 rows: four warps' are a warpgroup's product.
void multiply(unsigned warp, Step* const (&lanes)[32]);
void multiply_float8(unsigned warp, Step* const (&lanes)[32]);
void check_same(const Step& step, const Step& first);

}  // namespace emulated
