// Device primitives of the attention kernels: MMAs of sm_80 (mma.sync), asynchronous copies to shared memory
// (cp.async), shuffles and barriers. The rest of these kernels is plain C++, so that a host can run them on primitives
// of its own.
#pragma once

#include "backend/cuda/text/program_prelude.cuh"
#include "backend/kernels/shared/memory.cuh"
#include "backend/kernels/shared/settings.cuh"

/*{device shared}*/
#define SCOREMOD_KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define SCOREMOD_MEMBER __device__ __forceinline__
#define SCOREMOD_OUT_OF_LINE static __device__ __noinline__
#define SCOREMOD_ARGUMENT const __grid_constant__ Arguments
#define SCOREMOD_SHARED(name) extern __shared__ __align__(16) unsigned char name[]

using Half = unsigned short;  // an f16 or a bf16, by kBf16

SCOREMOD_FUNCTION unsigned shared_address(const void* at) { return (unsigned)__cvta_generic_to_shared(at); }

// ldmatrix.x4: four 8 x 8 matrices of 16-bit elements. Lane l points to row l % 8 of matrix l / 8. It gets elements 2
// (l % 4) and the next of row l / 4 of each matrix.
SCOREMOD_FUNCTION void load_matrices(unsigned (&out)[4], const Half* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row)));
}
// ldmatrix.x4.trans: as load_matrices(), but lane l gets elements of column l / 4.
SCOREMOD_FUNCTION void load_matrices_transposed(unsigned (&out)[4], const Half* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row)));
}

// mma.sync.m16n8k16: sum += a b, 16 x 16 by 16 x 8. Lane l holds of sum rows l / 4 and l / 4 + 8, columns 2 (l % 4) and
// the next.
template <bool kAreBf16 = kBf16>
SCOREMOD_FUNCTION void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if (kAreBf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// mma.sync.m16n8k8 in TF32, which reads the upper 11 digits of fp32: sum += a b, 16 x 8 by 8 x 8. Lane l has columns l
// % 4 and l % 4 + 4 of a, and these rows of b. Its rows of a are l / 4 and l / 4 + 8, which come first.
SCOREMOD_FUNCTION void multiply_add_upper(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// cp.async: copies `bytes` of kBytes to shared memory and fills the rest with zeros. `from` must be an address of the
// tensor even if nothing is copied.
template <int kBytes>
SCOREMOD_FUNCTION void copy_ahead(void* shared, const void* from, int bytes) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(from), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared_address(shared)), "l"(from), "n"(kBytes),
                 "r"(bytes)
                 : "memory");
  }
}
// cp.async with an L2 prefetch of 128 bytes: copy_ahead<16>() for data that is read once, side by side with the next
// read.
SCOREMOD_FUNCTION void copy_line_ahead(void* shared, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(from),
               "r"(bytes)
               : "memory");
}
// cp.async.commit_group: the thread's copies since the last call become a group.
SCOREMOD_FUNCTION void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// cp.async.wait_group: returns when at most kBut groups of the thread are in flight. Other threads see the data after a
// barrier.
template <int kBut>
SCOREMOD_FUNCTION void wait_for_copies_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kBut) : "memory");
}
// cp.async.wait_all: returns when all of the thread's copies are complete. Other threads see the data after a barrier.
SCOREMOD_FUNCTION void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// bar.sync 0 (__syncthreads): all threads of a CTA, producers too, also in kernels whose CTA has another size.
SCOREMOD_FUNCTION void cta_sync() { __syncthreads(); }
// Named barrier 1 (bar.sync) of the CTA's consumers; producers have other things to do. Without producers it is
// __syncthreads().
SCOREMOD_FUNCTION void block_barrier() {
  if (kProducers == 0)
    __syncthreads();
  else
    asm volatile("barrier.cta.sync 1, %0;" ::"n"(kWarps * 32) : "memory");
}
// Named barrier (bar.sync) of the kTeamWarps warps that are the CTA's `team`.
template <int kTeamWarps>
SCOREMOD_FUNCTION void team_barrier(int team) {
  if (kTeamWarps == 1)
    __syncwarp();
  else
    asm volatile("barrier.cta.sync %0, %1;" ::"r"(team + 1), "n"(kTeamWarps * 32) : "memory");
}
// barrier.cta.red.or (bar.red.or): whether the condition holds for any thread that block_barrier() waits for.
SCOREMOD_FUNCTION bool any_of_block(bool condition) {
  if (kProducers == 0) return __syncthreads_or(condition) != 0;
  unsigned any;
  asm volatile(
      "{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nbarrier.cta.red.or.pred q, 1, %2, p;\nselp.u32 %0, 1, 0, q;\n}"
      : "=r"(any)
      : "r"((unsigned)condition), "n"(kWarps * 32)
      : "memory");
  return any != 0;
}
SCOREMOD_FUNCTION unsigned ballot(bool condition) { return __ballot_sync(0xffffffffu, condition); }
SCOREMOD_FUNCTION float exchange(float value, int lane_distance) {
  return __shfl_xor_sync(0xffffffffu, value, lane_distance);
}
SCOREMOD_FUNCTION unsigned exchange_bits(unsigned value, int lane_distance) {
  return __shfl_xor_sync(0xffffffffu, value, lane_distance);
}
// shfl.sync from any lane.
SCOREMOD_FUNCTION int from_lane(int value, int lane) { return __shfl_sync(0xffffffffu, value, lane); }

// Memory fence (__threadfence): writes before it become visible before writes after it, and reads after it are no older
// than those before.
SCOREMOD_FUNCTION void order_memory() { __threadfence(); }
// atomicCAS: makes the word `instead` if it is `expected`; returns its previous value.
SCOREMOD_FUNCTION unsigned long long exchange_word(unsigned long long* word, unsigned long long expected,
                                                   unsigned long long instead) {
  return atomicCAS(word, expected, instead);
}

// The number of the bit that is set in a word with one bit.
SCOREMOD_FUNCTION int bit_number(unsigned bit) { return 31 - __clz((int)bit); }

SCOREMOD_FUNCTION unsigned bits_of(float x) { return __float_as_uint(x); }
// ld.global.nc: a number that nobody writes meanwhile, so that the compiler may keep it.
SCOREMOD_FUNCTION float load_constant(const float* from) { return __ldg(from); }
SCOREMOD_FUNCTION float exp2_of(float x) {
  float value;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(value) : "f"(x));
  return value;
}
SCOREMOD_FUNCTION float multiply_add(float x, float y, float z) { return __fmaf_rn(x, y, z); }

// Two floats rounded to halves, the first in the lower bits.
SCOREMOD_FUNCTION unsigned bf16_pair_of(float low, float high) {
  unsigned bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
SCOREMOD_FUNCTION unsigned f16_pair_of(float low, float high) {
  unsigned bits;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}
template <bool kAreBf16 = kBf16>
SCOREMOD_FUNCTION unsigned pair_of(float low, float high) {
  return kAreBf16 ? bf16_pair_of(low, high) : f16_pair_of(low, high);
}
// prmt.b32: four bytes of x, numbers 0 to 3, and of y, 4 to 7; the selector's lowest hex digit names the lowest one.
SCOREMOD_FUNCTION unsigned bytes_of(unsigned x, unsigned y, unsigned selector) { return __byte_perm(x, y, selector); }
/*{}*/
