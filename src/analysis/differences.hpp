#pragma once

#include <vector>

#include "scoremod/program.hpp"

namespace scoremod::analysis {

/// For each node, whether its value follows from b, h and the difference kv_idx - q_idx (in i32, which wraps) alone: it
/// is then the same for all pairs of a query and a key that lie as far apart. What varies with neither is among them.
std::vector<bool> of_differences(const Program& program);

}  // namespace scoremod::analysis
