#pragma once

#include <cstddef>
#include <cstdint>

#include "scoremod/dtype.hpp"

namespace scoremod::backend::cuda {

/// out[z][i][j] = factor * sum over d of a[z][i][d] b[z][j][d], summed in float32. Device pointers; strides in
/// elements, those of d are 1. Planes may have stride 0 where they are read.
struct RowProducts {
  DType dtype = DType::kBF16;  ///< of a and b: f32, f16 or bf16
  std::int64_t planes = 1, rows = 0, columns = 0, depth = 0;
  const void* a = nullptr;
  std::int64_t a_plane = 0, a_row = 0;
  const void* b = nullptr;
  std::int64_t b_plane = 0, b_row = 0;
  float* out = nullptr;
  std::int64_t out_plane = 0, out_row = 0;
  float factor = 1;
};

/// Bytes of device memory, aligned to 256, that cuBLAS asks for on the devices where it asks for most.
inline constexpr std::size_t kBlasWorkspaceBytes = std::size_t{32} << 20;

/// cuBLAS as one thread uses it for one stream of its current device. A thread has one handle for each device, made at
/// first use and destroyed with the thread. Throws Error(kEnvironment) with the loader's or cuBLAS's own text.
class BlasStream {
 public:
  BlasStream(void* stream, void* workspace, std::size_t workspace_bytes);
  void multiply(const RowProducts& product) const;

 private:
  void* handle_ = nullptr;
};

}  // namespace scoremod::backend::cuda
