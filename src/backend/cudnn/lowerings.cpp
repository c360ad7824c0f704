#include "backend/cudnn/lowerings.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

namespace scoremod::backend::cudnn {
namespace {

/// Parts of forms' names. Each group is left out in turn, with those before it, because a slower form says the same.
constexpr std::array<std::string_view, 2> kReplaceable{".as_declared", "band"};

/// How many groups are left out where a form is.
std::size_t groups_with(std::string_view form) {
  const auto is_part = [&](std::string_view part) { return form.find(part) != std::string_view::npos; };
  return static_cast<std::size_t>(std::ranges::find_if(kReplaceable, is_part) - kReplaceable.begin()) + 1;
}

}  // namespace

Lowerings lowerings(const compiler::CompiledProblem& problem, const PlanTask& task, const FormFilter& allowed) {
  Lowerings result;
  LoweringOptions options;
  options.backward = task.direction == Direction::kBackward;
  options.with_offsets = problem.problem.index_offsets;
  std::size_t left_out = 0;
  while (left_out <= kReplaceable.size()) {
    // How many to leave out for a lowering that hears another answer, and so may differ.
    std::size_t next = kReplaceable.size() + 1;
    options.allowed = [&](std::string_view form) {
      const std::size_t groups = groups_with(form);
      if (groups <= left_out || !allowed(form)) return false;
      next = std::min(next, groups);
      return true;
    };
    LoweringResult lowering = lower(problem, options);
    for (std::string& reason : lowering.reasons) {
      if (std::ranges::find(result.reasons, reason) == result.reasons.end())
        result.reasons.push_back(std::move(reason));
    }
    if (lowering.lowered) {
      AttentionGraph graph = attention_graph(problem.problem, task, lowering.lowered->graph);
      const auto same = [&](const Lowering& other) { return other.graph == graph; };
      if (std::ranges::none_of(result.found, same)) {
        result.found.push_back({std::move(*lowering.lowered), std::move(graph)});
      }
    }
    left_out = next;
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
