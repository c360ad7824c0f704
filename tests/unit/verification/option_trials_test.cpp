// Trials of every option and modifier accept the plans of the CPU backend, which they must not refuse without reason.

#include <string>

#include <gtest/gtest.h>

#include "backend/cpu/backward_plan.hpp"
#include "backend/cpu/forward_plan.hpp"
#include "compiler/pipeline.hpp"
#include "problem/tensor_view.hpp"
#include "support/option_cases.hpp"
#include "verification/trial.hpp"
#include "verification/verdict.hpp"
#include "verification/verify_plan.hpp"

namespace scoremod::verification {
namespace {

using backend::Direction;

void expect_right(const checking::CheckCase& test) {
  const compiler::CompiledProblem subject = compiler::compile(test.problem);
  Trial trial(subject);
  const compiler::CompiledProblem& tried = trial.problem();
  const auto forward = backend::cpu::make_forward_plan(tried, {1});
  EXPECT_EQ(verdict_of(verify_forward(trial, *forward, backend::host_memory()), Direction::kForward).reason, "");
  if (!tried.problem.backward) return;
  const auto backward = backend::cpu::make_backward_plan(tried, {1});
  const auto errors =
      verify_backward(trial, *backward, backend::host_memory(), problem::operands_with_gradient(tried.problem));
  EXPECT_EQ(verdict_of(errors, Direction::kBackward).reason, "");
}

TEST(OptionTrials, FindRightPlansRight) {
  for (const test::Option& option : test::options()) {
    for (const test::Modifier& modifier : test::modifiers()) {
      const checking::CheckCase made = test::option_case(option, modifier);
      // Engines on a device run these by a problem of 16 bits.
      if (is_float8(made.problem.dtype)) continue;
      SCOPED_TRACE(option.name + ", " + modifier.title);
      expect_right(made);
    }
  }
}

}  // namespace
}  // namespace scoremod::verification
