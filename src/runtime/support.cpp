#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "scoremod/attention.hpp"
#include "scoremod/compile_ahead.hpp"

#include "backend/backend.hpp"
#include "planner/plan_problem.hpp"
#include "runtime/known_structures.hpp"
#include "runtime/with_memory.hpp"

namespace scoremod {
namespace {

using backend::Backend;

/// The backends that support() asks: all of them, unless the caller selects some.
std::vector<const Backend*> asked(const CompileOptions& options) {
  if (!options.backend.empty() || !options.backends.empty() || options.memory) return planner::select(options).backends;
  std::vector<const Backend*> all;
  for (const Backend* candidate : backend::backends()) {
    if (!candidate->is_companion()) all.push_back(candidate);
  }
  return all;
}

std::vector<Support> answers_of(const AttentionProblem& problem, const CompileOptions& options, SupportLevel level,
                                const std::optional<backend::DeviceProperties>& elsewhere) {
  return runtime::with_memory("support", [&] {
    const compiler::CompiledProblem compiled = runtime::compiled_problem(problem, options);
    const auto depth = level == SupportLevel::kStatic ? planner::Level::kStatic : planner::Level::kVerified;
    std::vector<Support> answers;
    for (const Backend* engine : asked(options)) {
      planner::Selection alone{{engine}, engine->memory().kind(), true, "the caller"};
      const auto planned = planner::plan_problem_on(elsewhere, compiled, options, depth, std::move(alone));
      answers.push_back(planner::support_of(planned, *engine, compiled));
    }
    return answers;
  });
}

}  // namespace

std::vector<Support> support(const AttentionProblem& problem, const CompileOptions& options, SupportLevel level) {
  return answers_of(problem, options, level, std::nullopt);
}

std::vector<Support> support_elsewhere(const AttentionProblem& problem, std::string_view device_properties,
                                       const CompileOptions& options, SupportLevel level) {
  return answers_of(problem, options, level, backend::DeviceProperties::parse(device_properties));
}

}  // namespace scoremod
