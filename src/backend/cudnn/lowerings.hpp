#pragma once

#include <string>
#include <vector>

#include "backend/cudnn/graph/attention_graph.hpp"
#include "backend/cudnn/lowering/lower.hpp"
#include "backend/cudnn/patterns/pattern_table.hpp"

namespace scoremod::backend::cudnn {

/// One way to say a task to cuDNN.
struct Lowering {
  LoweredModifier modifier;
  AttentionGraph graph;
};

struct Lowerings {
  std::vector<Lowering> found;       ///< the fastest patterns first; no two with the same graph
  std::vector<std::string> reasons;  ///< why a set of patterns gave none
};

/// Every lowering worth trying: with all patterns that `allowed` is true of, and then without those that a slower
/// pattern can take the place of. Builds here, ahead of time and for a test all use this list.
Lowerings lowerings(const compiler::CompiledProblem& problem, const PlanTask& task, const PatternFilter& allowed);

/// True of the patterns that the table has seen to be right in a direction. Keeps a reference to the table.
PatternFilter right_patterns(const PatternTable& table, Direction direction);

/// The part of a pattern table that applies to a problem.
RowClass row_class(const AttentionProblem& problem);

}  // namespace scoremod::backend::cudnn
