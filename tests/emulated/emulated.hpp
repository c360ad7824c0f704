// The emulated device, as texts of kernels see it, in front of each. GCC compiles this once (tests/CMakeLists.txt).
// Each program has a device of its own, linked into it.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

using Half = unsigned short;
using Barrier = unsigned long long;

struct alignas(64) TensorMap {
  const unsigned char* data;
  long long sizes[4], strides[4], element_bytes, box_rows;
  unsigned long long unused[5];
};
static_assert(sizeof(TensorMap) == 128, "as the driver's");

namespace emulated {

struct Dim {
  unsigned x;
};
extern unsigned current, block, block_count;
extern unsigned char* shared;  // the running block's

[[noreturn]] void fail(const char* what, const char* more = "");

/// How a program's 16-bit elements are rounded.
using Encode = unsigned short (*)(float, bool bf16);

/// Runs a kernel's blocks one after the other, in any order. Guards and everything in shared memory are NaN before.
void run(void (*body)(), long long blocks, int count, size_t shared_bytes, unsigned seed);
/// Said before anything runs: whether 16-bit elements are bf16, and how to round to either kind.
void begin_program(bool bf16, Encode encode);
/// Has blocks run with barriers, TMA and WGMMA.
bool use_hopper();

unsigned short encoded(float value, bool bf16);
void load_matrices(unsigned (&out)[4], const Half* row, bool transposed);
void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, bool bf16);
void copy_ahead(void* shared, const void* from, int multiple, int bytes);
void wait_for_copies_but(int groups);
void team_meet(int team, int count);
/// All threads of a block, or `count` of them at its barrier `number`. Whether the condition holds for any.
bool meet_all(bool condition);
bool meet_at(int number, int count, bool condition = false);
/// Arrives at a barrier without waiting.
void arrive_at(int number, int count);

/// A factor of a WGMMA: registers, or else a matrix descriptor's view of shared memory, along or across its rows.
struct Factor {
  const unsigned* registers;
  unsigned view;
  bool transposed;
};
enum class Element { kHalf, kE4m3 };
/// Asks for a step of a WGMMA: sums += a b.
void ask(float (*sums)[4], int columns, const Factor& a, unsigned b, bool adds, Element element = Element::kHalf);
void wgmma_fence();
void end_group();
void wait_for_groups(size_t left);
unsigned e4m3_of(float x);

}  // namespace emulated

// Primitives that follow from no constant of a text.

void multiply_add_upper(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1);
void end_copies();
void wait_for_copies();
void cta_sync();
unsigned ballot(bool condition);
float exchange(float value, int lane_distance);
int from_lane(int value, int from);

unsigned shared_address(const void* at);
void warp_barrier();
int uniform(int value);
void mbarrier_init(Barrier* barrier, int arrivals);
void arrive(Barrier* barrier);
void arrive_after_copies(Barrier* barrier);
void arrive_and_expect(Barrier* barrier, int bytes);
void mbarrier_wait(Barrier* barrier, int parity);
void tma_load(void* to, const TensorMap* map, Barrier* barrier, int dim, int row, int h, int b);
void copy_bytes(void* to, const void* from, int bytes, Barrier* barrier);
void store_matrices(Half* row, const unsigned (&in)[4]);
void add_to_memory(float* to, const float (&values)[4]);
unsigned tile_view(const Half* tile, int rows);
