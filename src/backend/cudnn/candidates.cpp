#include "backend/cudnn/candidates.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

#include "base/fail.hpp"

namespace scoremod::backend::cudnn {
namespace {

/// Parts of forms' names. Each group is left out in turn, with those before it, because a slower form says the same.
constexpr std::array<std::string_view, 2> kReplaceable{".as_declared", "band"};

bool replaceable(std::string_view form, std::size_t groups) {
  return std::any_of(kReplaceable.begin(), kReplaceable.begin() + static_cast<std::ptrdiff_t>(groups),
                     [&](std::string_view part) { return form.find(part) != std::string_view::npos; });
}

}  // namespace

Candidates candidates(const compiler::CompiledProblem& problem, Direction direction, const FormFilter& allowed) {
  Candidates result;
  for (std::size_t groups = 0; groups <= kReplaceable.size(); ++groups) {
    LoweringOptions options;
    options.backward = direction == Direction::kBackward;
    options.allowed = [&](std::string_view form) { return !replaceable(form, groups) && allowed(form); };
    LoweringResult lowering = lower(problem, options);
    for (std::string& reason : lowering.reasons) {
      if (std::ranges::find(result.reasons, reason) == result.reasons.end())
        result.reasons.push_back(std::move(reason));
    }
    if (!lowering.lowered) continue;
    AttentionGraph graph = attention_graph(problem.problem, direction, lowering.lowered->graph);
    const bool known = std::ranges::any_of(result.found, [&](const Candidate& other) { return other.graph == graph; });
    if (!known) result.found.push_back({std::move(*lowering.lowered), std::move(graph)});
  }
  return result;
}

FormFilter right_forms(const FormTable& table, Direction direction) {
  return [&table, direction](std::string_view form) { return table.find(form, direction) == FormVerdict::kRight; };
}

RowClass row_class(const AttentionProblem& problem) {
  return problem.seq_q == 1 ? RowClass::kOneRow : RowClass::kManyRows;
}

}  // namespace scoremod::backend::cudnn
