#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "problem/tensor_view.hpp"

namespace scoremod::problem {

/// Tensors that lie interleaved in one: q, k and v in "BS3HD", or k and v in "BS2HD", where the number stands for the
/// part. Each tensor's memory begins at its part's first element.
struct PackedLayout {
  Layout layout = Layout::kBSHD;  ///< of each part
  int parts = 3;                  ///< 3: q, k and v. 2: k and v
  bool within_heads = false;      ///< "H3D": the parts of one head are neighbours. "3HD": all heads of a part are
};

/// Parses BS3HD, BSH3D, SB3HD, SBH3D and those with a 2; empty when the name is none of them.
std::optional<PackedLayout> parse_packed_layout(std::string_view name);
const std::vector<std::string>& packed_layout_names();

/// How one of its tensors lies. Throws Error(kInvalidArgument) that begins with `field` where the problem's tensors are
/// not of one shape, or the strides do not fit 63 bits. The problem's sizes are valid.
TensorLayout part_of(const PackedLayout& packed, const AttentionProblem& problem, TensorRole role,
                     const std::string& field);

}  // namespace scoremod::problem
