#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "backend/plan.hpp"
#include "problem/block_scales.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::cuda {

/// One conversion of a tensor's memory from one problem's format to the other's. The problems differ in dtypes and
/// layouts alone, so that both have the same elements.
struct Float8Conversion {
  const AttentionProblem* from_problem = nullptr;
  const void* from = nullptr;
  const AttentionProblem* to_problem = nullptr;
  void* to = nullptr;
  problem::TensorRole role = problem::TensorRole::kQ;
  /// On the device; null for 1. Elements are multiplied by the first and divided by the second. Then their largest
  /// magnitude is taken if it is wanted, and they are multiplied by `scale`.
  std::array<const float*, 2> times{}, by{};
  const float* scale = nullptr;
  float* largest = nullptr;
  /// For a times[0] of numbers of KV heads: the elements from one to the next, and the heads that share one.
  std::int64_t times_step = 0, times_group = 1;
  /// The elements' block scales, by which they are multiplied too; null without any.
  const float* block_scales = nullptr;
  problem::ScalePlaces scale_places = {};
};
/// Numbers of KV heads, `step` elements apart, as a dense list for `heads` query heads.
struct HeadScales {
  const float* from = nullptr;
  std::int64_t step = 0;
  float* to = nullptr;
  std::int64_t heads = 0, group = 1;
};

/// CUDA C++ text of the kernels of Float8Conversions.
std::string float8_conversion_source();

/// Kernels that do so, in the memory of the device that was current when they were made.
class Float8Conversions {
 public:
  virtual ~Float8Conversions() = default;
  virtual void enqueue(const Float8Conversion& conversion, void* stream) const = 0;
  virtual void enqueue(const HeadScales& scales, void* stream) const = 0;

  /// Throws what cached_kernels() throws.
  static std::unique_ptr<const Float8Conversions> build();
};

}  // namespace scoremod::backend::cuda
