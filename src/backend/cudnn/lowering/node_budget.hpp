#pragma once

#include <vector>

#include "analysis/dependence.hpp"
#include "backend/cudnn/lowering/lower.hpp"

namespace scoremod::backend::cudnn {

/// The operations that they will be in cuDNN's graph.
int node_count(const ModifierGraph& graph);
/// The nodes that a modifier may have beside the attention's own in a graph of max_operations().
int node_budget(const AttentionProblem& problem, bool backward);

/// The computed operands to begin with: the largest expressions of operands alone that do not span q and kv. Written as
/// nodes each would take several, because cuDNN wants a computed first input. As a tensor it is no larger than its own
/// inputs along those axes.
std::vector<bool> operand_expressions(const Program& program, const std::vector<analysis::Dependence>& dependence);

/// A modifier of more nodes than this is made smaller where that takes no tensor over queries and keys.
inline constexpr int kFewNodes = 30;

/// Lowers the program, and computes expressions beforehand if it has many nodes, those with the fewest bytes for each
/// saved node first. Down to kFewNodes it takes only expressions along rows or columns, whose memory is little. It
/// takes as many others as the node budget requires. Throws NoPattern.
LoweredModifier lower_within_budget(const compiler::CompiledProblem& problem, const LoweringOptions& options);

}  // namespace scoremod::backend::cudnn
