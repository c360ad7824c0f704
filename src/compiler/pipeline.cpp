#include "compiler/pipeline.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "autodiff/differentiate.hpp"
#include "base/fail.hpp"
#include "ir/verify.hpp"
#include "masks/classify_mask.hpp"
#include "passes/drop_surrogates.hpp"
#include "passes/normalize_mask.hpp"
#include "passes/share.hpp"
#include "passes/simplify.hpp"
#include "problem/bound_scale.hpp"
#include "problem/implied_operands.hpp"

namespace scoremod::compiler {
namespace {

masks::MaskContext mask_context(const AttentionProblem& problem) {
  masks::MaskContext context;
  context.seq_q = problem.seq_q;
  context.seq_kv = problem.seq_kv;
  return context;
}

/// One step: it changes the compiled problem, and returns the program that it worked on, for dumps and verification.
struct Step {
  const char* name;
  const Program& (*run)(CompiledProblem&);
  /// Runs in its place when it is disabled; null if the step cannot be. Disabling costs speed, never meaning.
  void (*without)(CompiledProblem&);
  bool (*applies)(const AttentionProblem&) = [](const AttentionProblem&) { return true; };
};

bool wants_backward(const AttentionProblem& problem) { return problem.backward; }
bool has_lengths(const AttentionProblem& problem) {
  return problem.lengths.q || problem.lengths.kv || problem.tokens_q || problem.tokens_kv;
}

bool reads_scale(const AttentionProblem& problem) { return problem::reads_scale(problem.program); }
bool has_surrogates(const AttentionProblem& problem) { return passes::has_surrogates(problem.program); }
bool differentiates_surrogates(const AttentionProblem& problem) { return problem.backward && has_surrogates(problem); }

void nothing(CompiledProblem&) {}

template <Program (*pass)(const Program&)>
const Program& on_forward(CompiledProblem& compiled) {
  return compiled.forward.program = pass(compiled.forward.program);
}

template <Program (*pass)(const Program&)>
const Program& on_backward(CompiledProblem& compiled) {
  return compiled.backward->program = pass(compiled.backward->program);
}

const Program& bound_lengths(CompiledProblem& compiled) {
  compiled.problem = problem::with_lengths_in_mask(std::move(compiled.problem));
  return compiled.forward.program = compiled.problem.program;
}

const Program& bound_scale(CompiledProblem& compiled) {
  compiled.problem = problem::with_scale_as_constant(std::move(compiled.problem));
  return compiled.forward.program = compiled.problem.program;
}

const Program& classify_forward(CompiledProblem& compiled) {
  compiled.forward.mask = masks::classify_mask(compiled.forward.program, mask_context(compiled.problem));
  return compiled.forward.program;
}

/// Whether the nodes that the mask is made of have the same numbers in both programs.
bool share_mask(const Program& forward, const Program& backward) {
  if (forward.keep() != backward.keep()) return false;
  if (forward.keep() == kNoNode) return true;
  const auto end = static_cast<std::ptrdiff_t>(forward.keep()) + 1;
  return std::equal(forward.nodes().begin(), forward.nodes().begin() + end, backward.nodes().begin());
}

/// The steps on the forward may have been left out, and then those on the derivative make another mask of it.
const Program& classify_backward(CompiledProblem& compiled) {
  const Program& program = compiled.backward->program;
  compiled.backward->mask = share_mask(compiled.forward.program, program)
                                ? compiled.forward.mask
                                : masks::classify_mask(program, mask_context(compiled.problem));
  return program;
}

/// Nothing is known of a mask that nobody looked at: one term that may be anything.
masks::MaskClass unclassified(const Program& program) {
  masks::MaskClass mask;
  if (program.keep() == kNoNode) return mask;
  mask.kind = masks::MaskKind::kGeneral;
  mask.terms.emplace_back().node = program.keep();
  return mask;
}

void leave_forward_unclassified(CompiledProblem& compiled) {
  compiled.forward.mask = unclassified(compiled.forward.program);
}

void leave_backward_unclassified(CompiledProblem& compiled) {
  compiled.backward->mask = unclassified(compiled.backward->program);
}

const Program& differentiate(CompiledProblem& compiled) {
  compiled.backward.emplace().program = autodiff::differentiate(compiled.forward.program);
  return compiled.backward->program;
}

const Program& reduce_operands(CompiledProblem& compiled) {
  compiled.backward->reductions = operand_reductions(compiled.problem, compiled.backward->program);
  return compiled.backward->program;
}

// The compiler. A name is said once: --disable, dumps and times use it.
constexpr std::array kSteps{
    // Lengths become part of the mask, so that no backend has code for them.
    Step{"bound_lengths", bound_lengths, nullptr, has_lengths},
    // A program that reads the scale gets it as a constant too.
    Step{"bound_scale", bound_scale, nullptr, reads_scale},
    // Less for every later step to look at, and constants where they are expected.
    Step{"simplify", on_forward<passes::simplify>, nothing},
    // One order for arguments that commute, so that a + b and b + a are one node.
    Step{"share", on_forward<passes::share>, nothing},
    // select(cond, x, -inf) becomes keep, and keep a chain of AND terms.
    Step{"normalize_mask", on_forward<passes::normalize_mask>, nothing},
    // Without its selects a value may simplify further; the terms of keep are left as normalised.
    Step{"simplify_normalized", on_forward<passes::simplify>, nothing},
    // The derivative shares the nodes of the final program, so nothing after it may change the forward part. `share` is
    // not among the later steps, because it would reorder the terms of keep.
    Step{"differentiate", differentiate, nullptr, wants_backward},
    // Surrogates have done their work.
    Step{"drop_surrogates", on_forward<passes::drop_surrogates>, nullptr, has_surrogates},
    Step{"drop_surrogates_of_derivative", on_backward<passes::drop_surrogates>, nullptr, differentiates_surrogates},
    // Names the mask's shape, so that tiles can be skipped. Last on the program: it names nodes by id.
    Step{"classify_mask", classify_forward, leave_forward_unclassified},
    Step{"simplify_derivative", on_backward<passes::simplify>, nothing, wants_backward},
    // The derivative's mask is the forward's, with the node numbers of the derivative.
    Step{"classify_derivative_mask", classify_backward, leave_backward_unclassified, wants_backward},
    // Last: it names the derivative's roots.
    Step{"reduce_operands", reduce_operands, nullptr, wants_backward},
};

void refuse_unknown(const std::vector<std::string>& disabled) {
  const std::vector<std::string> known = step_names();
  for (const std::string& name : disabled) {
    if (std::ranges::find(known, name) != known.end()) continue;
    std::string list;
    for (const std::string& step : known) list += (list.empty() ? "" : ", ") + step;
    fail_argument("no compiler step '", name, "' can be disabled; expected one of ", list);
  }
}

void run_step(const Step& step, CompiledProblem& compiled, const PipelineOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  const Program& after = step.run(compiled);
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
  ir::verify(after);
  if (options.on_step) options.on_step({step.name, after.to_string(), took.count()});
}

}  // namespace

std::vector<std::string> step_names() {
  std::vector<std::string> names;
  for (const Step& step : kSteps) {
    if (step.without != nullptr) names.emplace_back(step.name);
  }
  return names;
}

CompiledProblem compile(const AttentionProblem& problem, const PipelineOptions& options) {
  refuse_unknown(options.disabled);
  validate(problem);
  CompiledProblem compiled{problem::with_implied_operands(problem), {}, std::nullopt, {}};
  compiled.derived.begin();
  compiled.forward.program = compiled.problem.program;
  for (const Step& step : kSteps) {
    if (!step.applies(problem)) continue;
    const bool disabled = std::ranges::find(options.disabled, step.name) != options.disabled.end();
    if (disabled)
      step.without(compiled);
    else
      run_step(step, compiled, options);
  }
  return compiled;
}

}  // namespace scoremod::compiler
