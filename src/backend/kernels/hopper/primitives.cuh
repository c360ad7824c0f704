// Device primitives of the Hopper kernels beside shared/primitives.cuh: WGMMA (wgmma.mma_async), TMA loads
// (cp.async.bulk.tensor), mbarriers and named barriers. By setmaxnreg warpgroups hand registers to one another.
#pragma once

#include "backend/kernels/shared/primitives.cuh"

#define SCOREMOD_MAPPED_ARGUMENT const __grid_constant__ MappedArguments

// bar.warp.sync (__syncwarp).
SCOREMOD_FUNCTION void warp_barrier() { __syncwarp(); }

// %ctaid.x, which is blockIdx.x, read again: a value computed from it need not stay in registers meanwhile.
SCOREMOD_FUNCTION int block_number() {
  int number;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(number));
  return number;
}

// shfl.sync from lane 0: tells the compiler that a value is the same for all threads of a warp. It then takes none of
// their registers.
SCOREMOD_FUNCTION int uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

// A tensor map for TMA: a CUtensorMap.
struct alignas(64) TensorMap {
  unsigned long long words[16];
};

// An mbarrier in shared memory. It begins in phase 0; a wait for a phase returns when the phase is over.
using Barrier = unsigned long long;

// mbarrier.init.
SCOREMOD_FUNCTION void mbarrier_init(Barrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// fence.mbarrier_init: a thread that initialized mbarriers calls it before the CTA's next barrier.
SCOREMOD_FUNCTION void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// mbarrier.arrive.
SCOREMOD_FUNCTION void arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// mbarrier.arrive.expect_tx: arrives, and makes the phase wait for that many bytes of TMA loads.
SCOREMOD_FUNCTION void arrive_and_expect(Barrier* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
// cp.async.mbarrier.arrive.noinc: arrives when the thread's cp.async copies so far are there. WGMMA reads them after
// fence_proxy_async() by a thread that waited for the phase.
SCOREMOD_FUNCTION void arrive_after_copies(Barrier* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// mbarrier.try_wait.parity, repeated until the phase is over.
SCOREMOD_FUNCTION void mbarrier_wait(Barrier* barrier, int phase) {
  unsigned done = 0;
  while (done == 0) {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(phase)
                 : "memory");
  }
}

// prefetch.tensormap: called ahead of the first TMA load, which would wait for the map.
SCOREMOD_FUNCTION void fetch_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// cp.async.bulk.tensor.4d (TMA load) of a box: 64 dims from `dim` and the map's number of rows from `row`. Elements
// beyond the tensor are zeros.
SCOREMOD_FUNCTION void tma_load(void* shared, const TensorMap* map, Barrier* barrier, int dim, int row, int h, int b) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared_address(shared)),
      "l"(map), "r"(shared_address(barrier)), "r"(dim), "r"(row), "r"(h), "r"(b)
      : "memory");
}
// cp.async.bulk: copies `bytes`, which is a multiple of 16, as are both addresses.
SCOREMOD_FUNCTION void copy_bytes(void* shared, const void* from, int bytes, Barrier* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
// fence.proxy.async: makes a thread's own writes to shared memory visible to WGMMA and TMA. A barrier for the other
// threads follows.
SCOREMOD_FUNCTION void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// stmatrix.x4, the inverse of load_matrices(): lane l points to row l % 8 of matrix l / 8. It has elements 2 (l % 4)
// and the next of row l / 4 of each.
SCOREMOD_FUNCTION void store_matrices(Half* row, const unsigned (&in)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
               "r"(in[0]), "r"(in[1]), "r"(in[2]), "r"(in[3])
               : "memory");
}

// red.global.add.v4.f32: adds to four floats of global memory, at a multiple of 16 bytes, which other threads may add
// to at the same time.
SCOREMOD_FUNCTION void add_to_memory(float* to, const float (&values)[4]) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(values[0]), "f"(values[1]),
               "f"(values[2]), "f"(values[3])
               : "memory");
}

// Named barrier (barrier.cta.sync, or bar.sync) of `threads` threads; numbers 0 and 1 are block_barrier()'s.
SCOREMOD_FUNCTION void meet(int number, int threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
// Named barrier arrival (barrier.cta.arrive, or bar.arrive): other threads wait for it in meet().
SCOREMOD_FUNCTION void arrive_at(int number, int threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// fma.rn.f32 as volatile assembly: sum += x y in program order. Deferring many elements would cost registers that
// WGMMAs need.
SCOREMOD_FUNCTION void add_in_order(float& sum, float x, float y) {
  asm volatile("fma.rn.f32 %0, %1, %2, %0;" : "+f"(sum) : "f"(x), "f"(y));
}

// setmaxnreg.inc: a consumer warpgroup takes registers.
template <int kRegisters>
SCOREMOD_FUNCTION void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
// setmaxnreg.dec: a producer warpgroup releases registers.
template <int kRegisters>
SCOREMOD_FUNCTION void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// The lower half of a WGMMA matrix descriptor: the tile's address, and the stride between its blocks of 64 columns of
// 16-bit elements. A block's row is 128 bytes, in the 128-byte swizzle, and a tile begins at a multiple of 1024 bytes.
// The upper half is the same for all tiles: eight rows are 1024 bytes, and the swizzle is of 128 bytes.
#define SCOREMOD_UPPER_HALF "0x40000040"
SCOREMOD_FUNCTION unsigned tile_view(const Half* tile, int rows) {
  return (shared_address(tile) & 0x3ffffu) >> 4 | (unsigned)(rows * 128) >> 4 << 16;
}
SCOREMOD_FUNCTION unsigned moved_by(unsigned view, int bytes) { return view + (unsigned)(bytes >> 4); }

// wgmma.fence begins a group of WGMMAs, and wgmma.commit_group ends it. wgmma.wait_group returns when at most kLeft
// later groups are in flight. Until then nothing else may touch the registers and accumulators of the group.
SCOREMOD_FUNCTION void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
SCOREMOD_FUNCTION void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kLeft>
SCOREMOD_FUNCTION void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}
// fence_operand for the compiler: uses of these values before it stay before, and uses after it stay after.
template <int kCount>
SCOREMOD_FUNCTION void fence_operand(float (&values)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    asm volatile("" : "+f"(values[i][0]), "+f"(values[i][1]), "+f"(values[i][2]), "+f"(values[i][3])::"memory");
}
template <int kCount>
SCOREMOD_FUNCTION void fence_operand(unsigned (&values)[kCount][4]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i)
    asm volatile("" : "+r"(values[i][0]), "+r"(values[i][1]), "+r"(values[i][2]), "+r"(values[i][3])::"memory");
}

// wgmma.mma_async.m64nNk16 for N = kColumns: d (+)= a b, 64 x 16 by 16 x kColumns, with the accumulators in the layout
// of Sums. If `adds` is false, d is the product alone.
template <int kColumns>
struct Product {
  // Both a and b come from shared memory, with their columns along the sum.
  SCOREMOD_MEMBER static void of_rows(float (&d)[kColumns / 8][4], unsigned a, unsigned b, bool adds);
  // Both a and b come from shared memory, with their rows along the sum; a is transposed.
  SCOREMOD_MEMBER static void of_columns(float (&d)[kColumns / 8][4], unsigned a, unsigned b, bool adds);
  // a comes from registers, b from shared memory with its rows along the sum.
  SCOREMOD_MEMBER static void of_registers(float (&d)[kColumns / 8][4], const unsigned (&a)[4], unsigned b, bool adds);
};
/*{product}*/
template <>
struct Product</*{columns}*/ 8 /*{}*/> {
  static constexpr int kColumns = /*{columns}*/ 8 /*{}*/;
  SCOREMOD_MEMBER static void of_rows(float (&d)[kColumns / 8][4], unsigned a, unsigned b, bool adds) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, /*{r2}*/%6/*{}*/, 0;\n"
        "mov.b64 a, {/*{r0}*/%4/*{}*/, " SCOREMOD_UPPER_HALF "};\nmov.b64 b, {/*{r1}*/%5/*{}*/, " SCOREMOD_UPPER_HALF
        "};\n"
        "wgmma.mma_async.sync.aligned.m64n/*{columns}*/8/*{}*/k16.f32./*{type}*/bf16.bf16/*{}*/ "
        "{/*{sums}*/%0, %1, %2, %3/*{}*/}, a, b, p, 1, 1, 0, 0;\n}"
        : /*{operands}*/ "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]) /*{}*/
        : "r"(a), "r"(b), "r"((int)adds));
  }
  SCOREMOD_MEMBER static void of_columns(float (&d)[kColumns / 8][4], unsigned a, unsigned b, bool adds) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, /*{r2}*/%6/*{}*/, 0;\n"
        "mov.b64 a, {/*{r0}*/%4/*{}*/, " SCOREMOD_UPPER_HALF "};\nmov.b64 b, {/*{r1}*/%5/*{}*/, " SCOREMOD_UPPER_HALF
        "};\n"
        "wgmma.mma_async.sync.aligned.m64n/*{columns}*/8/*{}*/k16.f32./*{type}*/bf16.bf16/*{}*/ "
        "{/*{sums}*/%0, %1, %2, %3/*{}*/}, a, b, p, 1, 1, 1, 1;\n}"
        : /*{operands}*/ "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]) /*{}*/
        : "r"(a), "r"(b), "r"((int)adds));
  }
  SCOREMOD_MEMBER static void of_registers(float (&d)[kColumns / 8][4], const unsigned (&a)[4], unsigned b, bool adds) {
    asm volatile(
        "{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, /*{r5}*/%9/*{}*/, 0;\n"
        "mov.b64 b, {/*{r4}*/%8/*{}*/, " SCOREMOD_UPPER_HALF
        "};\n"
        "wgmma.mma_async.sync.aligned.m64n/*{columns}*/8/*{}*/k16.f32./*{type}*/bf16.bf16/*{}*/ "
        "{/*{sums}*/%0, %1, %2, %3/*{}*/}, {/*{quad}*/%4, %5, %6, %7/*{}*/}, b, p, 1, 1, 1;\n}"
        : /*{operands}*/ "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]) /*{}*/
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"((int)adds));
  }
};
/*{}*/
