#pragma once

#include <span>
#include <vector>

#include "scoremod/program.hpp"

namespace scoremod::ir {

/// A hash of one node's contents.
std::uint64_t hash_of(const Node& node);

/// Drops the nodes that no root reaches, numbers the rest depth first from the roots in order, and verifies the result.
Program canonical(const std::vector<OperandDecl>& operands, const std::vector<Node>& nodes,
                  std::span<const Root> roots);

}  // namespace scoremod::ir
