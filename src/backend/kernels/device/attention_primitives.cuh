// What the attention kernels ask of the device: sm_80's matrix products, copies to shared memory that run beside
// other work, exchanges between threads. Nothing else in these kernels is more than C++, so that a host can run them on
// primitives of its own.
#pragma once

#include "backend/cuda/program_prelude.cuh"
#include "backend/kernels/device/attention_arguments.cuh"
#include "backend/kernels/device/attention_settings.cuh"

#define SCOREMOD_KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define SCOREMOD_MEMBER __device__ __forceinline__
#define SCOREMOD_OUT_OF_LINE static __device__ __noinline__
#define SCOREMOD_ARGUMENT const __grid_constant__ Arguments
#define SCOREMOD_SHARED(name) extern __shared__ __align__(16) unsigned char name[]

using Half = unsigned short;  // an f16 or a bf16, by kBf16

SCOREMOD_FUNCTION unsigned shared_address(const void* at) { return (unsigned)__cvta_generic_to_shared(at); }

// Four 8 x 8 matrices of halves. Lane l says where row l % 8 of matrix l / 8 begins; it gets elements 2 (l % 4) and
// the next of row l / 4 of each matrix, or of that column where transposed.
SCOREMOD_FUNCTION void load_matrices(unsigned (&out)[4], const Half* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row)));
}
SCOREMOD_FUNCTION void load_matrices_transposed(unsigned (&out)[4], const Half* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row)));
}

// sum += a b, 16 x 16 by 16 x 8. Lane l holds of sum rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next.
SCOREMOD_FUNCTION void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if (kBf16) {
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

// The same of the upper 11 digits of floats, 16 x 8 by 8 x 8: a's columns and b's rows are l % 4 and l % 4 + 4 of lane
// l, and a's rows l / 4 and l / 4 + 8, which come first.
SCOREMOD_FUNCTION void multiply_add_upper(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Copies `bytes` of kBytes and fills the rest with zeros, beside what follows. `from` must be an address of the tensor
// even where nothing is copied.
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
// copy_ahead<16>() of what is read once, side by side with what is read next: the cache asks memory for lines of 128
// bytes.
SCOREMOD_FUNCTION void copy_line_ahead(void* shared, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(from),
               "r"(bytes)
               : "memory");
}
// What the thread has asked for since the last call becomes a group.
SCOREMOD_FUNCTION void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Returns when all groups of the thread but the last kBut are there; other threads see them after a barrier.
template <int kBut>
SCOREMOD_FUNCTION void wait_for_copies_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kBut) : "memory");
}
// Returns when all of the thread's copies are there; other threads see them after a barrier.
SCOREMOD_FUNCTION void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// All threads of a block, producers too, or of a block of another size.
SCOREMOD_FUNCTION void everyone_meets() { __syncthreads(); }
// Of the block's threads but producers, which have other things to do.
SCOREMOD_FUNCTION void block_barrier() {
  if (kProducers == 0)
    __syncthreads();
  else
    asm volatile("barrier.cta.sync 1, %0;" ::"n"(kWarps * 32) : "memory");
}
// Of kTeamWarps warps, which are the block's `team`.
template <int kTeamWarps>
SCOREMOD_FUNCTION void team_barrier(int team) {
  if (kTeamWarps == 1)
    __syncwarp();
  else
    asm volatile("barrier.cta.sync %0, %1;" ::"r"(team + 1), "n"(kTeamWarps * 32) : "memory");
}
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

// What the thread wrote to the device's memory before, others that see what it writes after see too; and what it reads
// after is no older than what it has seen.
SCOREMOD_FUNCTION void order_memory() { __threadfence(); }
// Makes the word `instead` if it is `expected`; returns what it was.
SCOREMOD_FUNCTION unsigned long long exchange_word(unsigned long long* word, unsigned long long expected,
                                                   unsigned long long instead) {
  return atomicCAS(word, expected, instead);
}

// Of a word with one bit.
SCOREMOD_FUNCTION int bit_number(unsigned bit) { return 31 - __clz((int)bit); }

SCOREMOD_FUNCTION unsigned bits_of(float x) { return __float_as_uint(x); }
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
SCOREMOD_FUNCTION unsigned pair_of(float low, float high) {
  return kBf16 ? bf16_pair_of(low, high) : f16_pair_of(low, high);
}
