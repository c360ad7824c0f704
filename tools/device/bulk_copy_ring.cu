// A ring of bulk copies between two warps that mbarriers keep in step, as hopper_backward_keys and hopper_backward_fused have it. With an argument the reader does not
// wait, which is a race and gives another sum. compute-sanitizer's racecheck of CUDA 13.0 calls both races: it does not follow bulk copies
// to the barriers that they complete.
//
//   nvcc -arch=sm_90 -cudart static -o bulk_copy_ring bulk_copy_ring.cu && compute-sanitizer --tool racecheck ./bulk_copy_ring [wrong]
#include <cstdio>
#include <cstdint>
__device__ unsigned addr(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void wait_for(uint64_t* b, int phase) {
  unsigned done = 0;
  while (!done) asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0,1,0,p;}" : "=r"(done) : "r"(addr(b)), "r"(phase) : "memory");
}
template <bool kWait>
__global__ void ring(const float* from, float* to, int steps) {
  __shared__ alignas(128) float stage[2][64];
  __shared__ alignas(8) uint64_t full[2], empty[2];
  if (threadIdx.x == 0)
    for (int i = 0; i < 2; ++i) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(addr(full + i)) : "memory");
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(addr(empty + i)) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
  __syncthreads();
  if (threadIdx.x >= 32) {
    if (threadIdx.x == 32)
      for (int s = 0; s < steps; ++s) {
        const int i = s % 2, round = s / 2;
        wait_for(empty + i, round % 2 ^ 1);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 256;" ::"r"(addr(full + i)) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];" ::"r"(addr(stage[i])), "l"(from + s * 64), "r"(addr(full + i)) : "memory");
      }
  } else {
    float sum = 0;
    for (int s = 0; s < steps; ++s) {
      const int i = s % 2, round = s / 2;
      if (kWait) wait_for(full + i, round % 2);
      sum += stage[i][threadIdx.x] + stage[i][threadIdx.x + 32];
      __syncwarp();
      if (threadIdx.x == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(addr(empty + i)) : "memory");
    }
    to[threadIdx.x] = sum;
  }
}
int main(int argc, char**) {
  const int steps = 16;
  float *from, *to, host[32];
  cudaMalloc(&from, steps * 256); cudaMalloc(&to, 128);
  float values[steps * 64]; for (int i = 0; i < steps * 64; ++i) values[i] = i % 7;
  cudaMemcpy(from, values, sizeof(values), cudaMemcpyHostToDevice);
  if (argc == 1) ring<true><<<1, 64>>>(from, to, steps); else ring<false><<<1, 64>>>(from, to, steps);
  cudaMemcpy(host, to, 128, cudaMemcpyDeviceToHost);
  float want = 0; for (int s = 0; s < steps; ++s) want += values[s * 64] + values[s * 64 + 32];
  std::printf("%s: %g, expected %g (%s)\n", argc == 1 ? "waits" : "does not wait", host[0], want, cudaGetErrorString(cudaGetLastError()));
}
