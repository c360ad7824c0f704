#include "backend/cudnn/lowerings.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

namespace scoremod::backend::cudnn {
namespace {

/// Parts of patterns' names. Each group is left out in turn, with those before it, because a slower pattern says the
/// same.
constexpr std::array<std::string_view, 2> kReplaceable{".as_declared", "band"};

/// How many groups are left out where a pattern is.
std::size_t groups_with(std::string_view pattern) {
  const auto is_part = [&](std::string_view part) { return pattern.find(part) != std::string_view::npos; };
  return static_cast<std::size_t>(std::ranges::find_if(kReplaceable, is_part) - kReplaceable.begin()) + 1;
}

}  // namespace

Lowerings lowerings(const compiler::CompiledProblem& problem, const PlanTask& task, const PatternFilter& allowed) {
  Lowerings result;
  LoweringOptions options;
  options.backward = task.direction == Direction::kBackward;
  options.with_offsets = problem.problem.index_offsets;
  std::size_t left_out = 0;
  while (left_out <= kReplaceable.size()) {
    // How many to leave out for a lowering that hears another answer, and so may differ.
    std::size_t next = kReplaceable.size() + 1;
    options.allowed = [&](std::string_view pattern) {
      const std::size_t groups = groups_with(pattern);
      if (groups <= left_out || !allowed(pattern)) return false;
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

PatternFilter right_patterns(const PatternTable& table, Direction direction) {
  return [&table, direction](std::string_view pattern) {
    return table.find(pattern, direction) == PatternVerdict::kRight;
  };
}

RowClass row_class(const AttentionProblem& problem) {
  return problem.seq_q == 1 ? RowClass::kOneRow : RowClass::kManyRows;
}

}  // namespace scoremod::backend::cudnn
