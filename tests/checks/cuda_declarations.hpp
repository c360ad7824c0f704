// Declarations that CUDA C++ has and C++ lacks, as far as the .cuh files of src use them. With them a host compiler
// checks those files if there is no NVRTC.
#pragma once

#define __CUDACC_RTC__
#define __CUDA_ARCH__ 900
#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
};
extern const dim3 threadIdx, blockIdx, blockDim, gridDim;

struct uint2 {
  unsigned x, y;
};
struct uint4 {
  unsigned x, y, z, w;
};
struct float4 {
  float x, y, z, w;
};
uint2 make_uint2(unsigned x, unsigned y);
uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w);
float4 make_float4(float x, float y, float z, float w);

void __syncthreads();
int __syncthreads_or(int condition);
void __syncwarp(unsigned mask = 0xffffffffu);
void __threadfence();
template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32);
unsigned __byte_perm(unsigned, unsigned, unsigned);
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int distance, int width = 32);
template <class T>
unsigned __match_all_sync(unsigned mask, T value, int* same);
int __any_sync(unsigned mask, int value);
int __all_sync(unsigned mask, int value);
unsigned __ballot_sync(unsigned mask, int value);
template <class T>
T atomicAdd(T* address, T value);
template <class T>
T atomicOr(T* address, T value);
template <class T>
T atomicMax(T* address, T value);
template <class T>
T atomicMin(T* address, T value);
template <class T>
T atomicCAS(T* address, T expected, T value);
decltype(sizeof(0)) __cvta_generic_to_shared(const void* pointer);
double floor(double x);
double ceil(double x);
double nearbyint(double x);
float __fmaf_rn(float x, float y, float z);
float __ldg(const float* from);
int __clz(int bits);
float __uint_as_float(unsigned bits);
unsigned __float_as_uint(float value);
float __int_as_float(int bits);
int __float_as_int(float value);

using size_t = decltype(sizeof(0));
extern "C" {
float expf(float);
float exp2f(float);
float logf(float);
float log1pf(float);
float fabsf(float);
float fmodf(float, float);
float fmaf(float, float, float);
float fmaxf(float, float);
float fminf(float, float);
float erfcf(float);
float sqrtf(float);
}
double ldexp(double, int);
