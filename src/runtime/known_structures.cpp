#include "runtime/known_structures.hpp"

#include <atomic>
#include <utility>

#include "base/canonical_bytes.hpp"
#include "base/fail.hpp"
#include "base/timeline.hpp"
#include "plans/erased_plan_cache.hpp"
#include "problem/implied_operands.hpp"
#include "problem/structure_key.hpp"

namespace scoremod::runtime {
namespace {

/// A compiled program takes some ten kB.
constexpr std::size_t kMostStructures = 1024;

std::atomic<std::uint64_t> compiled = 0;

/// Never destroyed: threads may compile while the process ends.
plans::ErasedPlanCache& structures() {
  static auto& made = *new plans::ErasedPlanCache("structure", {kMostStructures, SIZE_MAX});
  return made;
}

Bytes key_of(const AttentionProblem& problem, const CompileOptions& options) {
  CanonicalWriter key;
  key.bytes(problem::structure_key(problem)).list(options.disabled_passes.size());
  for (const std::string& pass : options.disabled_passes) key.text(pass);
  return key.written();
}

}  // namespace

std::shared_ptr<const KnownStructure> known_structure(const AttentionProblem& problem, const CompileOptions& options) {
  const TimedStep step("compile the program");
  if (options.threads < 0) fail_argument("expected 0 threads (one for each core) or more, found ", options.threads);
  validate(problem);
  const plans::ErasedPlan found = structures().get(key_of(problem, options), [&] {
    ++compiled;
    auto known = std::make_shared<KnownStructure>();
    compiler::PipelineOptions pipeline;
    pipeline.disabled = options.disabled_passes;
    pipeline.on_step = [&](const compiler::StepReport& report) { known->steps.push_back(report); };
    known->compiled = compiler::compile(problem, pipeline);
    known->declared = problem::with_implied_operands(problem).program;
    return plans::ErasedPlan{std::move(known), 0, ""};
  });
  return std::static_pointer_cast<const KnownStructure>(found.plan);
}

compiler::CompiledProblem compiled_problem(const AttentionProblem& problem, const CompileOptions& options) {
  return compiler::at_sizes_of(problem, known_structure(problem, options)->compiled);
}

std::uint64_t compiled_structures() { return compiled; }

void clear_known_structures() { structures().clear(); }

}  // namespace scoremod::runtime
