#include "compiler/pipeline.hpp"

#include <algorithm>
#include <array>
#include <chrono>

#include "autodiff/differentiate.hpp"
#include "base/fail.hpp"
#include "ir/verify.hpp"
#include "masks/classify_mask.hpp"
#include "passes/normalize_mask.hpp"
#include "passes/share.hpp"
#include "passes/simplify.hpp"

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
  /// Runs in its place when it is disabled; null where the step cannot be: what is left out is speed, never meaning.
  void (*without)(CompiledProblem&);
  bool backward = false;  ///< only for problems that want backward
};

void nothing(CompiledProblem&) {}

template <Program (*pass)(const Program&)>
const Program& on_program(CompiledProblem& compiled) {
  return compiled.program = pass(compiled.program);
}

template <Program (*pass)(const Program&)>
const Program& on_derivative(CompiledProblem& compiled) {
  return *(compiled.derivative = pass(*compiled.derivative));
}

const Program& classify(CompiledProblem& compiled) {
  compiled.mask = masks::classify_mask(compiled.program, mask_context(compiled.problem));
  return compiled.program;
}

/// Nothing is known of a mask that nobody looked at: one term that may be anything.
void leave_unclassified(CompiledProblem& compiled) {
  compiled.mask = {};
  if (compiled.program.keep() == kNoNode) return;
  compiled.mask.kind = masks::MaskKind::kGeneral;
  compiled.mask.terms.emplace_back().node = compiled.program.keep();
}

const Program& differentiate(CompiledProblem& compiled) {
  return *(compiled.derivative = autodiff::differentiate(compiled.program));
}

// The compiler. A name is said once: --disable, dumps and times use it.
constexpr std::array kSteps{
    // Less for every later step to look at, and constants where they are expected.
    Step{"simplify", on_program<passes::simplify>, nothing},
    // One order for arguments that commute, so that a + b and b + a are one node.
    Step{"share", on_program<passes::share>, nothing},
    // select(cond, x, -inf) becomes keep, and keep a chain of AND terms.
    Step{"normalize_mask", on_program<passes::normalize_mask>, nothing},
    // Without its selects a value may simplify further; the terms of keep are left as normalised.
    Step{"simplify_normalized", on_program<passes::simplify>, nothing},
    // Names the mask's shape, so that tiles can be skipped. Last on the program: it names nodes by id.
    Step{"classify_mask", classify, leave_unclassified},
    // From the final program, whose nodes it shares: nothing after it may change the forward part, so that share, which
    // would put the terms of keep in another order, is not among these.
    Step{"differentiate", differentiate, nullptr, true},
    Step{"simplify_derivative", on_derivative<passes::simplify>, nothing, true},
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
  CompiledProblem compiled{problem, problem.program, std::nullopt, {}};
  for (const Step& step : kSteps) {
    if (step.backward && !problem.backward) continue;
    const bool disabled = std::ranges::find(options.disabled, step.name) != options.disabled.end();
    if (disabled)
      step.without(compiled);
    else
      run_step(step, compiled, options);
  }
  return compiled;
}

}  // namespace scoremod::compiler
