#include "compiler/compiled_problem.hpp"

#include <utility>

namespace scoremod::compiler {
namespace {

/// A band that follows the diagonal of the last query and key follows another one at other lengths, while the
/// program's constants stay.
void forget_lengths(masks::MaskClass& mask, const AttentionProblem& before) {
  if (mask.band) mask.band = masks::top_left(*mask.band, before.seq_q, before.seq_kv);
}

}  // namespace

CompiledProblem resized(CompiledProblem compiled, AttentionProblem problem) {
  forget_lengths(compiled.forward.mask, compiled.problem);
  if (compiled.backward) {
    forget_lengths(compiled.backward->mask, compiled.problem);
    compiled.backward->reductions = operand_reductions(problem, compiled.backward->program);
  }
  compiled.problem = std::move(problem);
  return compiled;
}

}  // namespace scoremod::compiler
