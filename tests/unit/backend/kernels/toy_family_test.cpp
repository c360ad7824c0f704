// A family of kernels in a folder of its own is offered, predicted, verified, built and refused as the library's are.

#include "support/toy_family/toy_family.hpp"

#include <algorithm>
#include <optional>

#include <gtest/gtest.h>

#include "backend/cuda/device/library.hpp"
#include "backend/kernels/backend/kernels_backend.hpp"
#include "compiler/pipeline.hpp"
#include "problem/tensor_view.hpp"
#include "support/emulated_plans.hpp"
#include "unit/backend/kernels/kernel_candidates.hpp"
#include "verification/trial.hpp"
#include "verification/verdict.hpp"
#include "verification/verify_plan.hpp"

namespace scoremod::backend {
namespace {

class ToyFamily : public ::testing::Test {
 protected:
  kernels::AddedFamily added_{test::kToyFamily, test::toy_files()};
};

AttentionProblem short_problem(std::int64_t seq_q = 60) {
  AttentionProblem problem = problem_of("value = score\nkeep = kv_idx <= q_idx");
  problem.seq_q = seq_q;
  problem.seq_kv = 90;
  problem.backward = false;
  return problem;
}

std::vector<Candidate> toys_among(std::vector<Candidate> candidates) {
  std::erase_if(candidates, [](const Candidate& one) { return one.label.find("toy kernels") == std::string::npos; });
  return candidates;
}

TEST_F(ToyFamily, IsOfferedAndPredicted) {
  const auto all = candidates_of(short_problem(), Direction::kForward);
  const auto toys = toys_among(all);
  ASSERT_EQ(toys.size(), 2U);
  EXPECT_GT(all.size(), 4U) << "beside the other families";
  EXPECT_EQ(toys[0].notes.front(), "forward bf16 d128 by toy kernels of 4 warps");
  EXPECT_EQ(toys[0].predicted.source, "a toy's own");
  EXPECT_EQ(std::ranges::min(all, {}, [](const Candidate& one) { return one.predicted.milliseconds; }).label,
            toys[1].label);
}

TEST_F(ToyFamily, HasKeysThatFollowFromItsSource) {
  const auto toys = toys_among(candidates_of(short_problem(), Direction::kForward));
  const auto others = toys_among(candidates_of(short_problem(33), Direction::kForward));
  ASSERT_EQ(toys.size(), 2U);
  ASSERT_EQ(others.size(), 2U);
  EXPECT_EQ(toys[0].plan_key, others[0].plan_key) << "sizes are arguments";
  EXPECT_EQ(toys[0].structural_key, others[0].structural_key);
  EXPECT_NE(toys[0].plan_key, toys[1].plan_key) << "warps are compiled in";
  EXPECT_NE(toys[0].structural_key, toys[1].structural_key);
  AttentionProblem other = short_problem();
  other.program = Program::parse("value = score");
  EXPECT_NE(toys[0].plan_key, toys_among(candidates_of(other, Direction::kForward)).at(0).plan_key);
}

TEST_F(ToyFamily, IsRefusedWithAnId) {
  std::vector<UnsupportedReason> reasons;
  const auto all = kernels_backend().candidates(compiler::compile(short_problem(101)), {Direction::kForward, true, {}},
                                                h200(), reasons);
  EXPECT_TRUE(toys_among(all).empty());
  EXPECT_FALSE(all.empty());
  const auto reason =
      std::ranges::find(reasons, "toy kernels: expected at most 100 queries, found 101", &UnsupportedReason::text);
  ASSERT_NE(reason, reasons.end());
  EXPECT_EQ(reason->id, "engine_refused");
}

TEST_F(ToyFamily, IsVerifiedByATrial) {
  AttentionProblem problem = short_problem();
  problem.heads_kv = 4;
  problem.program =
      Program::parse("operand slope: f32 [h]\nvalue = score + slope * f32(kv_idx - q_idx)\nkeep = kv_idx <= q_idx");
  problem.operands = {problem::default_spec(problem, problem.program.operands().front())};
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  const auto verdict = [&](const test::EmulatedLaunches::Fault& fault, int warps = 4) {
    verification::Trial trial(compiled);
    const auto plan = test::emulated_forward_plan(trial.problem(), *test::toy_variant(warps), fault);
    return verification::verdict_of(verification::verify_forward(trial, *plan, host_memory(), {0x1p-20, 0x1p-20}),
                                    Direction::kForward);
  };
  const auto right = verdict({});
  EXPECT_TRUE(right.right) << right.reason;
  EXPECT_TRUE(verdict({}, 2).right);
  EXPECT_FALSE(verdict({"const int q = blockIdx.x % call.seq_q,", "const int q = blockIdx.x % call.seq_q / 2,"}).right);
}

TEST_F(ToyFamily, IsBuiltAheadForADeviceThatIsNotHere) {
  if (cuda::nvrtc_library().handle == nullptr) GTEST_SKIP() << "no NVRTC: " << cuda::nvrtc_library().reason;
  const auto toys = toys_among(candidates_of(short_problem(), Direction::kForward));
  ASSERT_FALSE(toys.empty());
  const BuildResult built = toys[0].recipe->build(h200());
  ASSERT_NE(built.artifact, nullptr) << built.refusal;
  const std::vector<std::byte> bytes = built.artifact->serialize();
  EXPECT_EQ(toys[0].recipe->load(bytes, h200())->serialize(), bytes);
}

TEST(Families, KnowNothingOfOneThatIsGone) {
  { const kernels::AddedFamily added(test::kToyFamily, test::toy_files()); }
  EXPECT_TRUE(toys_among(candidates_of(short_problem(), Direction::kForward)).empty());
}

}  // namespace
}  // namespace scoremod::backend
