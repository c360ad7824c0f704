// The kernel of ComputeKernel: compute_source.hpp describes its arguments. Each case writes one tensor.
#pragma once

#include "backend/cuda/text/program_prelude.cuh"

extern "C" __global__ void __launch_bounds__(/*{threads}*/ 256 /*{}*/)
    compute(int offset_b, int offset_h, int offset_q, int offset_kv /*{operands}*/,
            const void* operand_0 /*{}*/
            /*{outputs}*/,
            void* output_0 /*{}*/) {
  const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  const long long step = gridDim.x * (long long)blockDim.x;
  switch (blockIdx.y) {
    /*{cases}*/
    case /*{number}*/ 0 /*{}*/:
      for (long long i = first; i < /*{size}*/ 1LL /*{}*/; i += step) {
        long long rest = i;
        /*{indices}*/
        const int /*{name}*/ b /*{}*/ = (int)(rest % /*{extent}*/ 2 /*{}*/);
        rest /= /*{extent}*/ 2 /*{}*/;
        /*{}*/
        /*{statements}*/ const float value = load_f32(operand_0, b + offset_b); /*{}*/
        ((/*{type}*/ float /*{}*/*)/*{output}*/ output_0 /*{}*/)[i] = /*{value}*/ value /*{}*/;
      }
      break;
      /*{}*/
  }
}
