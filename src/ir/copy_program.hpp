#pragma once

#include <vector>

#include "ir/builder.hpp"

namespace scoremod::ir {

/// Declares a program's operands in a builder and copies its nodes, which keep their order. Returns the nodes' ids
/// there, by their ids in the program.
std::vector<NodeId> copy_program(const Program& program, Builder& builder);

}  // namespace scoremod::ir
