#include "backend/cudnn/lowerings.hpp"

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

std::optional<Lowering> lowering_of(const compiler::CompiledProblem& problem, const PlanTask& task,
                                    const FormFilter& allowed, std::size_t groups_left_out,
                                    std::vector<std::string>& reasons) {
  LoweringOptions options;
  options.backward = task.direction == Direction::kBackward;
  options.with_offsets = problem.problem.index_offsets;
  options.allowed = [&](std::string_view form) { return !replaceable(form, groups_left_out) && allowed(form); };
  LoweringResult lowering = lower(problem, options);
  for (std::string& reason : lowering.reasons) {
    if (std::ranges::find(reasons, reason) == reasons.end()) reasons.push_back(std::move(reason));
  }
  if (!lowering.lowered) return std::nullopt;
  AttentionGraph graph = attention_graph(problem.problem, task, lowering.lowered->graph);
  return Lowering{std::move(*lowering.lowered), std::move(graph), groups_left_out};
}

Lowerings lowerings(const compiler::CompiledProblem& problem, const PlanTask& task, const FormFilter& allowed) {
  Lowerings result;
  for (std::size_t groups = 0; groups <= kReplaceable.size(); ++groups) {
    std::optional<Lowering> next = lowering_of(problem, task, allowed, groups, result.reasons);
    const auto same = [&](const Lowering& other) { return other.graph == next->graph; };
    if (next && std::ranges::none_of(result.found, same)) result.found.push_back(std::move(*next));
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
