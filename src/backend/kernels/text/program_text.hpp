#pragma once

#include <string>
#include <vector>

#include "backend/cuda/program_source.hpp"

// Functions that the texts of the attention kernels and of the operand-gradient kernels share.

namespace scoremod::backend::kernels {

/// How a program's functions are declared: large ones are called, small ones a part of their callers.
const char* linkage(const Program& program);
/// Definitions of the operands that the statements read, before these.
std::string with_operands(const cuda::ProgramSource& source, const std::string& statements);
/// The variable that says whether a key is kept.
std::string keep_variable(const Program& program);
/// The value, and the mask where there is one.
std::vector<NodeId> forward_nodes(const Program& program);

}  // namespace scoremod::backend::kernels
