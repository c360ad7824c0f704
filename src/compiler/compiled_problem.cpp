#include "compiler/compiled_problem.hpp"

#include <utility>

#include "problem/implied_operands.hpp"

namespace scoremod::compiler {
namespace {

/// A band that follows the diagonal of the last query and key follows another one at other lengths, while the
/// program's constants stay.
void forget_lengths(masks::MaskClass& mask, const AttentionProblem& before) {
  if (mask.band) mask.band = masks::top_left(*mask.band, before.seq_q, before.seq_kv);
}

/// A band is of the program's constants, and only its anchor of the sizes.
void anchor(masks::MaskClass& mask, const AttentionProblem& before, const AttentionProblem& now) {
  if (mask.band)
    mask.band = masks::anchored(masks::top_left(*mask.band, before.seq_q, before.seq_kv), now.seq_q, now.seq_kv);
}

}  // namespace

CompiledProblem at_sizes_of(AttentionProblem problem, const CompiledProblem& compiled) {
  CompiledProblem out{problem::with_implied_specs(std::move(problem)), compiled.forward, compiled.backward, {}};
  out.derived.share(compiled.derived);
  // The compiler has put lengths and a scale that is read into this one, and has declared the fields' operands.
  out.problem.program = compiled.problem.program;
  out.problem.lengths = compiled.problem.lengths;
  anchor(out.forward.mask, compiled.problem, out.problem);
  if (out.backward) {
    anchor(out.backward->mask, compiled.problem, out.problem);
    out.backward->reductions = operand_reductions(out.problem, out.backward->program);
  }
  return out;
}

CompiledProblem resized(CompiledProblem compiled, AttentionProblem problem) {
  compiled.derived = {};
  forget_lengths(compiled.forward.mask, compiled.problem);
  if (compiled.backward) {
    forget_lengths(compiled.backward->mask, compiled.problem);
    compiled.backward->reductions = operand_reductions(problem, compiled.backward->program);
  }
  compiled.problem = std::move(problem);
  return compiled;
}

}  // namespace scoremod::compiler
