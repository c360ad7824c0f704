#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "scoremod/problem.hpp"
#include "scoremod/program.hpp"

#include "backend/cuda/text/program_source.hpp"
#include "backend/kernels/text/kernel_source.hpp"
#include "backend/plan.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::kernels {

/// The time that a program adds to attention kernels, for all scores of the shape that costs were measured at
/// (backend/measured_at.hpp). It is in milliseconds on an H200.
struct NodeCosts {
  double value = 0;  ///< of the forward's value, or the derivative's value and gradient of the score
  double keep = 0;   ///< of the mask alone
};

/// The cost of evaluating a node for each score.
double node_cost(const Node& node, const Program& program);

/// The costs of the program that a direction's kernels evaluate. They read position_tables() unless `evaluates_all`,
/// and operand number `loaded_bias`, if any, from tiles that TMA loads. Nodes that vary along queries or keys alone
/// are evaluated once for several scores, and those that vary along neither cost nothing.
NodeCosts node_costs(const Program& program, bool evaluates_all = false, std::optional<std::uint32_t> loaded_bias = {});

/// Relative-position tables, which a kernel fills first (shared/program.cuh). They hold floats of a program
/// that follow from b, h and kv_idx - q_idx alone. Such a float takes longer to evaluate for each score than to read.
struct PositionTables {
  std::vector<NodeId> nodes;  ///< at most kMaxPositionTables
  bool by_batch = false, by_head = false;

  /// The entries of each table, for tiles that cover so many rows and keys.
  std::int64_t entries(const AttentionProblem& problem, std::int64_t rows, std::int64_t keys) const;
};
inline constexpr std::size_t kMaxPositionTables = 4;

/// The tables of a direction's program. Nodes of the mask alone are not among them.
PositionTables position_tables(const Program& program);
PositionTables position_tables(const compiler::CompiledProblem& problem, Direction direction);

/// Has a source read the tables, in a function that has p, b, h, any_q and any_kv.
void read_tables(cuda::ProgramSource& source, const PositionTables& tables);
/// Fills the holes of the tables in shared/program.cuh.
void fill_tables(Holes& holes, const AttentionProblem& problem, const Program& program, const PositionTables& tables);

}  // namespace scoremod::backend::kernels
