#pragma once

#include <vector>

#include "scoremod/program.hpp"

namespace scoremod::analysis {

/// For each node, whether its value depends only on b, h and the difference kv_idx - q_idx (in i32, which wraps). It is
/// then the same for all pairs at one distance. Nodes that depend on neither index are included.
std::vector<bool> of_differences(const Program& program);

}  // namespace scoremod::analysis
