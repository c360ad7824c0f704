#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "backend/kernels/operand_gradients/operand_target.hpp"
#include "backend/kernels/shared/tile_shape.hpp"
#include "backend/kernels/text/kernel_source.hpp"
#include "backend/plan.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::kernels {

/// The targets of some operands of a problem with backward, ascending by sum. Kernels that do nothing else sum all, and
/// none along diagonals. Beside dq, dk and dv there are none if one of them cannot be summed there. Such are a table
/// whose indices follow from more than kv_idx - q_idx, a bias that batches or heads share, and an operand that nothing
/// contributes to.
std::vector<OperandTarget> operand_targets(const compiler::CompiledProblem& problem,
                                           std::span<const std::uint32_t> operands, Gains gains);

/// Beside dq, dk and dv more targets than this would leave a thread no registers.
inline constexpr std::size_t kMaxTargets = 6;

/// The number of entries of all tables whose gradients are summed together.
inline constexpr std::int64_t kMaxTableEntries = std::numeric_limits<std::int32_t>::max();
std::int64_t table_entries(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets);

/// Whether one of them is summed along diagonals, which Hopper's kernel of dq alone does.
bool has_differences(std::span<const OperandTarget> targets);

/// The most keys that kernels with sums along diagonals take at once.
inline constexpr int kMaxDiagonalStep = 64;

/// The name of the kernel that writes a target's gradient; of one of OperandSum::kTable or kDifference, that which
/// clears its sums, and of the latter that which adds to them.
std::string total_kernel(const OperandTarget& target);
std::string clear_kernel(const OperandTarget& target);
std::string diagonals_kernel(const OperandTarget& target);

/// The source of kernels that sum these targets' gradients and do nothing else. `shape` is the backward's.
KernelSource operand_source(const compiler::CompiledProblem& problem, std::span<const OperandTarget> targets,
                            const TileShape& shape);

}  // namespace scoremod::backend::kernels
