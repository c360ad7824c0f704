#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/program_source.hpp"
#include "backend/kernels/attention_source.hpp"
#include "backend/kernels/operand_text.hpp"

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

/// Everything before a direction's kernels: settings, primitives, tiles, and the functions of its program.
std::string text_before_kernels(const compiler::CompiledProblem& problem, Direction direction, const TileShape& shape,
                                std::optional<std::string_view> primitives, const OperandText& operands, Gains gains);
/// The kernel that finds the states of tiles; empty where none is needed.
std::string text_of_tile_states(const compiler::CompiledProblem& problem, Direction direction);

}  // namespace scoremod::backend::kernels
