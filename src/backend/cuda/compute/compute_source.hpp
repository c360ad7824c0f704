#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/compute/compute_kernel.hpp"

namespace scoremod::backend::cuda {

inline constexpr int kComputeThreads = 256;

/// The text of ComputeKernel's kernel.
struct ComputeSource {
  /// Kernel "compute" with the parameters int offset_b, offset_h, offset_q, offset_kv, a const void* for each of
  /// `operands`, a void* for each tensor. Blocks along y are tensors, along x any number of blocks of kComputeThreads.
  std::string text;
  std::vector<std::uint32_t> operands;
};

ComputeSource compute_source(const AttentionProblem& problem, const Program& program,
                             std::span<const NodeTensor> tensors);

/// Number of elements.
std::int64_t size_of(const NodeTensor& tensor, const AttentionProblem& problem);

}  // namespace scoremod::backend::cuda
