#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/kernels/operand_target.hpp"
#include "backend/kernels/tile_shape.hpp"
#include "backend/plan.hpp"
#include "base/bytes.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::kernels {

/// Those of some operands of a problem with backward, ascending by sum; empty where one of them is summed in no such
/// way: a table whose indices follow from more than kv_idx - q_idx, one along queries and keys that batches or heads
/// share, one that nothing contributes to.
std::vector<OperandTarget> operand_targets(const compiler::CompiledProblem& problem,
                                           std::span<const std::uint32_t> operands);

/// More targets than this would leave a thread no registers.
inline constexpr std::size_t kMaxTargets = 6;

/// Whether one of them is summed along diagonals, which Hopper's kernel of dq alone does.
bool has_differences(std::span<const OperandTarget> targets);

/// Of kernels that do: the most keys that they take at once.
inline constexpr int kMaxDiagonalStep = 64;

/// The name of the kernel that adds up a target's sums; of one of OperandSum::kDifference, those that run before.
std::string total_kernel(const OperandTarget& target);
std::string clear_kernel(const OperandTarget& target);
std::string diagonals_kernel(const OperandTarget& target);

/// The text of the kernels of these targets: attention_backward_rows, those of attention_operand_gradients.cuh, and
/// where a mask needs it attention_tile_states. `shape` is the backward's; `primitives` as for attention_source().
std::string operand_source(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets,
                           const TileShape& shape, std::optional<std::string_view> primitives = {});

/// As structure_of_source().
Bytes structure_of_operand_source(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets,
                                  const TileShape& shape);

}  // namespace scoremod::backend::kernels
