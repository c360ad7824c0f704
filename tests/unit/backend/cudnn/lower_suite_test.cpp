#include <gtest/gtest.h>

#include "backend/cudnn/lowerings.hpp"
#include "backend/cudnn/problem_rules.hpp"
#include "check/suite_cases.hpp"
#include "compiler/pipeline.hpp"

namespace scoremod::backend::cudnn {
namespace {

/// Of each problem that the check suite runs on a device: what the lowering says on sm_90 with cuDNN 9.19.0. A problem
/// that it refuses is one that the suite can't judge, so that more of them would go unnoticed there.
TEST(LowerSuite, RefusesOnlyComputedTensorsBesideASingleKey) {
  CheckSuiteOptions options;
  options.random_problems = 500;
  int graphs = 0;
  for (const checking::CheckCase& test_case : checking::suite_cases(options)) {
    const compiler::CompiledProblem problem = compiler::compile(test_case.problem);
    const FormTable table = shipped_form_table("sm_90", "9.19.0", row_class(test_case.problem));
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      if (direction == Direction::kBackward && !problem.backward) continue;
      if (!problem_objections(test_case.problem, direction, 90).empty()) continue;
      ++graphs;
      const Lowerings found = lowerings(problem, direction, right_forms(table, direction));
      if (!found.found.empty()) continue;
      EXPECT_EQ(test_case.problem.seq_kv, 1) << test_case.name << ": " << found.reasons.front();
      EXPECT_NE(found.reasons.front().find("computed beforehand"), std::string::npos) << found.reasons.front();
    }
  }
  EXPECT_GT(graphs, 1000);
}

}  // namespace
}  // namespace scoremod::backend::cudnn
