// The kernels of Float8Conversions: a tensor in another dtype and layout, times factors that lie in the device's
// memory.
#pragma once

#include "backend/cuda/float8/float8_numbers.cuh"

constexpr int kRun = 8;
constexpr long long kMostOfShortNumbers = 0x7fffffff;  // runs that are counted in 32 bits

// Elements of a row from an offset on; in one load where they lie so.
SCOREMOD_FUNCTION void load_run(const void* data, int dtype, long long first, long long step, int count, float* run) {
  const char* bytes = (const char*)data + first * bytes_of(dtype);
  const bool whole = count == kRun && step == 1 && (unsigned long long)bytes % (kRun * bytes_of(dtype)) == 0;
  if (whole && bytes_of(dtype) == 1) {
    const uint2 words = *(const uint2*)bytes;
    for (int i = 0; i < kRun; ++i) run[i] = number_of(dtype, ((i < 4 ? words.x : words.y) >> (8 * (i % 4))) & 0xffu);
  } else if (whole && bytes_of(dtype) == 2) {
    const uint4 words = *(const uint4*)bytes;
    const unsigned pairs[4] = {words.x, words.y, words.z, words.w};
    for (int i = 0; i < kRun; ++i) run[i] = number_of(dtype, (pairs[i / 2] >> (16 * (i % 2))) & 0xffffu);
  } else if (whole) {
    const float4 low = ((const float4*)bytes)[0], high = ((const float4*)bytes)[1];
    const float numbers[kRun] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    for (int i = 0; i < kRun; ++i) run[i] = numbers[i];
  } else {
    for (int i = 0; i < count; ++i) {
      const char* at = bytes + i * step * bytes_of(dtype);
      const unsigned bits = bytes_of(dtype) == 4   ? *(const unsigned*)at
                            : bytes_of(dtype) == 2 ? *(const unsigned short*)at
                                                   : *(const unsigned char*)at;
      run[i] = number_of(dtype, bits);
    }
  }
}
SCOREMOD_FUNCTION void store_run(void* data, int dtype, long long first, long long step, int count, const float* run) {
  char* bytes = (char*)data + first * bytes_of(dtype);
  const bool whole = count == kRun && step == 1 && (unsigned long long)bytes % (kRun * bytes_of(dtype)) == 0;
  if (whole && bytes_of(dtype) == 1) {
    unsigned words[2] = {0u, 0u};
    for (int i = 0; i < kRun; ++i) words[i / 4] |= stored_bits(dtype, run[i]) << (8 * (i % 4));
    *(uint2*)bytes = make_uint2(words[0], words[1]);
  } else if (whole && bytes_of(dtype) == 2) {
    unsigned words[4] = {0u, 0u, 0u, 0u};
    for (int i = 0; i < kRun; ++i) words[i / 2] |= stored_bits(dtype, run[i]) << (16 * (i % 2));
    *(uint4*)bytes = make_uint4(words[0], words[1], words[2], words[3]);
  } else if (whole) {
    ((float4*)bytes)[0] = make_float4(run[0], run[1], run[2], run[3]);
    ((float4*)bytes)[1] = make_float4(run[4], run[5], run[6], run[7]);
  } else {
    for (int i = 0; i < count; ++i) {
      char* at = bytes + i * step * bytes_of(dtype);
      const unsigned bits = stored_bits(dtype, run[i]);
      if (bytes_of(dtype) == 4)
        *(unsigned*)at = bits;
      else if (bytes_of(dtype) == 2)
        *(unsigned short*)at = (unsigned short)bits;
      else
        *(unsigned char*)at = (unsigned char)bits;
    }
  }
}
SCOREMOD_FUNCTION float factor_or_one(const float* factor) { return factor == nullptr ? 1.0f : *factor; }

// Calls `convert(b, h, s, d)` for each run of this thread, whose first element is d. There are count runs, `runs` in a
// row. NVRTC takes no lambda with parameters of type auto in a kernel, so the numbers' type is that of a function.
template <class Number, class Convert>
SCOREMOD_FUNCTION void for_each_run(Number count, Number runs, Number heads, Number positions, const Convert& convert) {
  const Number threads = (Number)gridDim.x * blockDim.x;
  for (Number i = (Number)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += threads) {
    const Number row = i / runs, place = row / heads, b = place / positions;
    convert(b, row - place * heads, place - b * positions, (int)(i - row * runs) * kRun);
  }
}

// to = from * times0 * times1 / (by0 * by1) * scale, where heads in groups of times_group have their own times0, which
// lie times_step apart, or all the same. Block scales, if there are any, multiply it, too: scale_rows positions and
// scale_dims dims share one. The largest magnitude is that before `scale`, as bits, so NaN is the largest. Strides are
// in elements, of batches, heads, positions and dims.
extern "C" __global__ void __launch_bounds__(256)
    convert_tensor(const void* from, int from_dtype, long long from_batch, long long from_head, long long from_row,
                   long long from_dim, void* to, int to_dtype, long long to_batch, long long to_head, long long to_row,
                   long long to_dim, long long batches, long long heads, long long positions, int dims,
                   const float* times0, long long times_step, long long times_group, const float* times1,
                   const float* by0, const float* by1, const float* scale, unsigned* largest, const float* block_scales,
                   long long scale_batch, long long scale_head, long long scale_row, long long scale_dim,
                   long long scale_rows, int scale_dims) {
  const float times = factor_or_one(times1), by = factor_or_one(by0) * factor_or_one(by1);
  const float stored = factor_or_one(scale);
  const unsigned runs = (dims + kRun - 1) / kRun;
  const long long count = batches * positions * heads * runs;
  unsigned most = 0u;
  const auto convert = [&](long long b, long long h, long long s, int d) {
    const int size = dims - d < kRun ? dims - d : kRun;
    float run[kRun];
    const float factor = (times0 == nullptr ? 1.0f : times0[h / times_group * times_step]) * times / by;
    load_run(from, from_dtype, b * from_batch + h * from_head + s * from_row + d * from_dim, from_dim, size, run);
    const float* scales = block_scales == nullptr
                              ? nullptr
                              : block_scales + b * scale_batch + h * scale_head + s / scale_rows * scale_row;
    for (int j = 0; j < size; ++j) {
      run[j] *= scales == nullptr ? factor : factor * scales[(d + j) / scale_dims * scale_dim];
      const unsigned magnitude = bits_of_float(run[j]) & 0x7fffffffu;
      most = magnitude > most ? magnitude : most;
      run[j] *= stored;
    }
    store_run(to, to_dtype, b * to_batch + h * to_head + s * to_row + d * to_dim, to_dim, size, run);
  };
  // Numbers of 32 bits if these are enough, because dividing by them takes a fraction of the time.
  if (count <= kMostOfShortNumbers)
    for_each_run<unsigned>(count, runs, heads, positions, convert);
  else
    for_each_run<long long>(count, runs, heads, positions, convert);
  if (largest != nullptr) {
    for (int distance = 16; distance > 0; distance /= 2) {
      const unsigned other = __shfl_xor_sync(0xffffffffu, most, distance);
      most = other > most ? other : most;
    }
    if (threadIdx.x % 32 == 0) atomicMax(largest, most);
  }
}

extern "C" __global__ void clear_largest(unsigned* largest) { *largest = 0u; }

// The numbers of KV heads, `step` apart, for each of `heads` query heads in groups.
extern "C" __global__ void __launch_bounds__(256)
    spread_head_scales(const float* from, long long step, float* to, long long heads, long long group) {
  for (long long h = threadIdx.x; h < heads; h += blockDim.x) to[h] = from[h / group * step];
}
