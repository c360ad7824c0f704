#pragma once

#include <vector>

#include "scoremod/program.hpp"

namespace scoremod::analysis {

/// For each node of the program whether its keep root depends on it; all false without a keep root.
std::vector<bool> keep_nodes(const Program& program);

}  // namespace scoremod::analysis
