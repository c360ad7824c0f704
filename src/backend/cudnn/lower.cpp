#include "backend/cudnn/lower.hpp"

#include "backend/cudnn/lower_program.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cudnn {
namespace {

/// The frontend's band node is several nodes of cuDNN's graph: two indices, a shift, a comparison and a select.
constexpr int kNodesOfBand = 5;

int node_count(const ModifierGraph& graph) {
  int count = 0;
  for (const ModifierNode& node : graph.nodes) count += node.mode == Mode::kBand ? kNodesOfBand : 1;
  return count;
}

LoweredModifier lower_with(const compiler::CompiledProblem& problem, const LoweringOptions& options,
                           const std::vector<passes::Dependence>& dependence, std::vector<bool>& computed) {
  while (true) {
    const std::vector<bool> before = computed;
    LoweredModifier lowered;
    ProgramLowering(problem, options, dependence, computed, lowered).run();
    // Each round adds nodes, or it is the last.
    if (computed == before) return lowered;
  }
}

}  // namespace

LoweringResult lower(const compiler::CompiledProblem& problem, const LoweringOptions& options) {
  if (options.backward && !problem.derivative) fail_bug("a backward lowering of a problem without derivative");
  const Program& program = program_of(problem, options);
  const std::vector<passes::Dependence> dependence = passes::dependences(program);
  std::vector<bool> computed(program.nodes().size(), false);
  LoweringResult result;
  LoweredModifier lowered;
  try {
    lowered = lower_with(problem, options, dependence, computed);
  } catch (const NoForm& none) {
    result.reasons.push_back(none.reason);
    return result;
  }
  const int count = node_count(lowered.graph);
  const int budget = options.backward ? kBackwardNodeBudget : kForwardNodeBudget;
  if (count > budget) {
    result.reasons.push_back(concat("the program needs ", count, " cuDNN nodes; cuDNN 9.19 crashes above ", budget,
                                    options.backward ? " in backward" : " in forward", "; simplify it"));
    return result;
  }
  result.lowered = std::move(lowered);
  return result;
}

}  // namespace scoremod::backend::cudnn
