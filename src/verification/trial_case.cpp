#include "verification/trial_case.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "verification/trial_inputs.hpp"
#include "verification/trial_problem.hpp"

namespace scoremod::verification {
namespace {

/// The oracle of so many takes eight times as long as that of the usual two batches of four heads.
constexpr std::int64_t kManyHeads = 32, kManyBatches = 16;

/// Different along every axis. The first are small enough that masks still keep something; the others are there for
/// conditions that only far indices meet.
constexpr std::array kOffsets{IndexOffsets{1, 2, 5, 3},       IndexOffsets{1, 2, 5, 1003},
                              IndexOffsets{1, 2, 2005, 3},    IndexOffsets{1, 2, 2005, 1003},
                              IndexOffsets{1, 2, 1005, 2003}, IndexOffsets{1, 2, 5, 4003},
                              IndexOffsets{1, 1002, 5, 2003}, IndexOffsets{1001, 2, 3005, 2003},
                              IndexOffsets{2001, 1002, 5, 3}, IndexOffsets{1001, 3002, 1005, 2003}};

/// Sequences that offsets or tables place are whole and all there: calls take no offset along their axes.
IndexOffsets allowed(const AttentionProblem& problem, IndexOffsets offsets) {
  if (problem.tokens_q || problem.tokens_kv) offsets.batch = 0;
  if (problem.tokens_q) offsets.query = 0;
  if (problem.tokens_kv || problem.paged) offsets.key = 0;
  return offsets;
}

std::vector<IndexOffsets> offsets_to_try(const AttentionProblem& problem) {
  if (!problem.index_offsets) return {IndexOffsets{}};
  std::vector<IndexOffsets> found;
  found.reserve(kOffsets.size());
  for (const IndexOffsets& each : kOffsets) found.push_back(allowed(problem, each));
  return found;
}

/// Draws of inputs, as long as no row keeps a key: all of a draw's lengths may end before the offsets.
constexpr std::uint64_t kDraws = 8;

/// With random inputs, and the first offsets that show most.
TrialCase case_of(compiler::CompiledProblem trial) {
  TrialCase found{std::move(trial), {}, {}, {}, 0};
  const AttentionProblem& problem = found.problem.problem;
  const std::uint64_t draws = problem.program.operands().empty() ? 1 : kDraws;
  bool is_first = true;
  for (std::uint64_t seed = 0; seed < draws && found.reach.kept == 0; ++seed) {
    const ProblemInputs inputs = plain_inputs(problem, seed);
    for (const IndexOffsets& offsets : offsets_to_try(problem)) {
      const Reach reach = SampledRows(problem, offsets).reach(inputs);
      if (is_first || reach.shows_more_than(found.reach)) {
        found.offsets = offsets;
        found.reach = reach;
        found.seed = seed;
      }
      is_first = false;
      if (reach.complete) break;
    }
  }
  return found;
}

Breadth many_heads(const AttentionProblem& problem) {
  const std::int64_t heads_kv = std::min(problem.heads_kv, kManyHeads);
  return {.heads_kv = heads_kv, .group = kManyHeads / heads_kv};
}

TrialCase case_that_shows_most(const compiler::CompiledProblem& problem) {
  TrialCase best = case_of(trial_problem(problem));
  const auto try_breadth = [&](const Breadth& breadth) {
    TrialCase wide = case_of(trial_problem(problem, breadth));
    if (wide.reach.shows_more_than(best.reach)) best = std::move(wide);
  };
  const AttentionProblem usual = best.problem.problem;
  if (!best.reach.complete && best.reach.needs_heads && usual.heads_q < problem.problem.heads_q)
    try_breadth(many_heads(problem.problem));
  if (!best.reach.complete && best.reach.needs_batches && usual.batch < problem.problem.batch)
    try_breadth({.batches = kManyBatches});
  return best;
}

}  // namespace

backend::CallParameters TrialCase::parameters() const {
  constexpr std::uint64_t kDropoutSeed = 0x5eed'0123'4567'89ab, kDropoutOffset = 3;
  return {problem.problem.effective_scale(), offsets, nullptr, kDropoutSeed, kDropoutOffset};
}

TrialCase trial_case(const compiler::CompiledProblem& problem) {
  TrialCase found = case_that_shows_most(problem);
  found.inputs = trial_inputs(found.problem.problem, found.parameters(), found.seed);
  return found;
}

}  // namespace scoremod::verification
