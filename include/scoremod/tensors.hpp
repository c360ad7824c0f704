#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "scoremod/dtype.hpp"
#include "scoremod/export.hpp"
#include "scoremod/problem.hpp"

namespace scoremod {

/// The shape and layout of one tensor of a problem.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< in elements, one per dimension
  /// The dimensions of `shape`. "BSHD", "SBHD", "BHSD" or "THD" for q, k, v and o. In a paged KV cache, B is a page of
  /// k or v and S a position in it. "BHS" or "TH" for lse. For an operand the axes that it varies along ("h, kv_idx"),
  /// or "table".
  std::string dimensions;
  std::size_t bytes = 0;      ///< from the first element to the end of the last
  bool has_gradient = false;  ///< whether backward() writes its gradient

  bool operator==(const TensorInfo&) const = default;
};

/// The tensors of a problem: q, k, v, o, lse, then the operands in the order of the program's declarations. Shapes of
/// q, k, v and o are in the order of their layout, even with explicit strides. Gradients have the shapes and strides of
/// their operands. Throws what validate() throws.
SCOREMOD_API std::vector<TensorInfo> tensors_of(const AttentionProblem& problem);

/// d_o, dq, dk and dv, which lie as o, q, k and v unless the problem says otherwise; also of problems without backward.
SCOREMOD_API std::vector<TensorInfo> gradients_of(const AttentionProblem& problem);

}  // namespace scoremod
