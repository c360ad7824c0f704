#pragma once

#include <vector>

#include "scoremod/program.hpp"

namespace scoremod::analysis {

/// For each node of the program whether its keep root depends on it; all false without a keep root.
std::vector<bool> keep_nodes(const Program& program);
/// Whether the mask reads an operand, by index or from a table.
bool keep_reads_operands(const Program& program);

}  // namespace scoremod::analysis
