#include <algorithm>

#include <gtest/gtest.h>

#include "backend/cudnn/lowerings.hpp"
#include "backend/cudnn/problem_rules.hpp"
#include "backend/cudnn/structural_key.hpp"
#include "check/suite_cases.hpp"
#include "compiler/pipeline.hpp"
#include "support/test_seed.hpp"
#include "verification/trial_problem.hpp"

namespace scoremod::backend::cudnn {
namespace {

/// The lowering's answers on sm_90 with cuDNN 9.19.0 for each problem that the check suite runs on a device. The suite
/// can't judge refused problems, so more of them would hide faults.
TEST(LowerSuite, RefusesOnlyFunctionsThatCudnnLacksAndComputedTensorsBesideASingleKey) {
  CheckSuiteOptions options;
  options.seed = 0;
  options.random_problems = 500;
  int graphs = 0, lacking = 0;
  for (const checking::CheckCase& test_case : checking::suite_cases(options)) {
    const compiler::CompiledProblem problem = compiler::compile(test_case.problem);
    const PatternTable table = shipped_pattern_table("sm_90", "9.19.0", row_class(test_case.problem));
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      if (direction == Direction::kBackward && !problem.backward) continue;
      if (!problem_objections(test_case.problem, direction, 90).empty()) continue;
      ++graphs;
      const Lowerings found = lowerings(problem, direction, right_patterns(table, direction));
      if (!found.found.empty()) continue;
      if (found.reasons.front().find("cuDNN has no such function") != std::string::npos) {
        ++lacking;
        continue;
      }
      EXPECT_EQ(test_case.problem.seq_kv, 1) << test_case.name << ": " << found.reasons.front();
      EXPECT_NE(found.reasons.front().find("computed beforehand"), std::string::npos) << found.reasons.front();
    }
  }
  EXPECT_GT(graphs, 900);
  EXPECT_LT(lacking, graphs / 20);
}

/// Otherwise a plan could not be verified, and so not be used.
TEST(LowerSuite, GivesEveryTrialProblemALoweringOfTheProblemsStructure) {
  CheckSuiteOptions options;
  options.random_problems = 230;
  options.seed = test::test_seed();
  DeviceTarget target;
  target.architecture = "sm_90";
  target.cudnn_version = "9.19.0";
  for (const checking::CheckCase& test_case : checking::suite_cases(options)) {
    const compiler::CompiledProblem problem = compiler::compile(test_case.problem);
    const PatternTable table = shipped_pattern_table("sm_90", "9.19.0", row_class(test_case.problem));
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      if (direction == Direction::kBackward && !problem.backward) continue;
      if (!problem_objections(test_case.problem, direction, 90).empty()) continue;
      const compiler::CompiledProblem trial = verification::trial_problem(problem);
      const Lowerings found = lowerings(problem, direction, right_patterns(table, direction));
      if (found.found.empty()) continue;
      const auto key = [&](const Lowering& lowering, const AttentionProblem& of) {
        return canonical_text(structural_key(lowering.modifier, of, direction, target));
      };
      const std::string wanted = key(found.found.front(), problem.problem);
      const Lowerings tried = lowerings(trial, direction, right_patterns(table, direction));
      const bool has = std::ranges::any_of(
          tried.found, [&](const Lowering& lowering) { return key(lowering, trial.problem) == wanted; });
      // So short that a bound of the program's may be the length: the trial's lengths then give another structure, and
      // the planner refuses it.
      constexpr std::int64_t kShort = 24;
      const std::int64_t shortest = std::min(test_case.problem.seq_q, test_case.problem.seq_kv);
      EXPECT_TRUE(has || (shortest > 1 && shortest < kShort))
          << test_case.name << ": " << to_json(test_case.problem) << test_case.problem.program.to_string() << wanted
          << "\nof the trial: " << (tried.found.empty() ? "none" : key(tried.found.front(), trial.problem));
    }
  }
}

}  // namespace
}  // namespace scoremod::backend::cudnn
