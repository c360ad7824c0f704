#include "backend/cudnn/lowering/lower.hpp"

#include "backend/cudnn/lowering/graph_writer.hpp"
#include "backend/cudnn/lowering/node_budget.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cudnn {

LoweringResult lower(const compiler::CompiledProblem& problem, const LoweringOptions& options) {
  if (options.backward && !problem.backward) fail_bug("a backward lowering of a problem without derivative");
  LoweringResult result;
  try {
    result.lowered = lower_within_budget(problem, options);
  } catch (const NoPattern& none) {
    result.reasons.push_back(none.reason);
  }
  return result;
}

}  // namespace scoremod::backend::cudnn
