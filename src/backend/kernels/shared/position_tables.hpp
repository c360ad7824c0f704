#pragma once

#include <cstdint>
#include <vector>

#include "scoremod/problem.hpp"

#include "backend/cuda/program_source.hpp"
#include "backend/kernels/text/kernel_source.hpp"

namespace scoremod::backend::kernels {

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

/// Has a source read the tables, in a function that has p, b, h, any_q and any_kv.
void read_tables(cuda::ProgramSource& source, const PositionTables& tables);
/// Fills the holes of the tables in shared/program.cuh.
void fill_tables(Holes& holes, const AttentionProblem& problem, const Program& program, const PositionTables& tables);

}  // namespace scoremod::backend::kernels
