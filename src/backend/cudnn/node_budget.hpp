#pragma once

#include <vector>

#include "backend/cudnn/lower.hpp"
#include "passes/dependence.hpp"

namespace scoremod::backend::cudnn {

/// The nodes that cuDNN will count.
int node_count(const ModifierGraph& graph);
int node_budget(const AttentionProblem& problem, bool backward);

/// The computed operands to begin with: the largest expressions of operands alone that do not span q and kv. Written
/// as nodes each would take several, because cuDNN wants a computed first input; as a tensor it is no larger than what
/// it reads along those axes.
std::vector<bool> operand_expressions(const Program& program, const std::vector<passes::Dependence>& dependence);

/// Lowers the program, and computes as many expressions beforehand as it takes to stay within the node budget: those
/// first that cost the fewest bytes of memory for each node that they save. Throws NoForm.
LoweredModifier lower_within_budget(const compiler::CompiledProblem& problem, const LoweringOptions& options);

}  // namespace scoremod::backend::cudnn
