// Hopper's forward with tiles of an operand copied ahead, on a host, thread by thread: right by the float64 oracle, and
// the same bits as reads of each number give.

#include <algorithm>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "backend/kernels/direction_kernels.hpp"
#include "backend/kernels/hopper_shape.hpp"
#include "compiler/pipeline.hpp"
#include "problem/tensor_view.hpp"
#include "support/attention_kernels_cases.hpp"
#include "support/check_report.hpp"
#include "support/copied_operand_cases.hpp"
#include "support/emulated_attention.hpp"
#include "support/test_seed.hpp"
#include "unit/backend/kernels/kernel_candidates.hpp"
#include "verification/trial_problem.hpp"

namespace scoremod::backend::kernels {
namespace {

using Fault = test::EmulatedLaunches::Fault;

const std::vector<checking::CheckCase>& cases() {
  static const std::vector<checking::CheckCase> all = test::copied_operand_cases();
  return all;
}
const checking::CheckCase &by_head = cases()[0], &by_batch = cases()[1], &by_both = cases()[2], &of_all = cases()[3];

TileShape copying(const AttentionProblem& problem) {
  return copying_hopper_shape(problem, copied_operand(problem).value());
}

CheckReport check_of(const checking::CheckCase& test, const test::EmulatedFaults& faults = {}) {
  return test::check_emulated(
      test, random_inputs(test.problem), [](const AttentionProblem& problem, Direction) { return copying(problem); },
      faults);
}

class CopiedOperand : public ::testing::TestWithParam<std::size_t> {};

TEST_P(CopiedOperand, IsRight) {
  SCOPED_TRACE(cases()[GetParam()].name);
  test::expect_right(check_of(cases()[GetParam()]));
}
INSTANTIATE_TEST_SUITE_P(Cases, CopiedOperand, ::testing::Range(std::size_t{0}, cases().size()));

/// Where a call's pointers are none that copies of boxes take.
TEST(CopiedOperandOf, IsRightWhereThreadsCopyIt) {
  const Fault one_thread{"(!kCopiesOperand || call.d_o.aligned)", "false"},
      boxes{"if (tensor.aligned) {", "if (false) {"};
  test::expect_right(check_of(by_both, {.forward = one_thread, .of_both = boxes}));
}

TEST(CopiedOperandOf, GivesTheBitsOfReads) {
  const AttentionProblem problem = compiler::compile(by_batch.problem).problem;
  const std::vector inputs{random_inputs(problem), test::poisoned_inputs(problem, 0)};
  const auto bits_of = [&](const TileShape& shape) {
    return test::emulated_forward_bits(by_batch, inputs, shape, static_cast<unsigned>(test::test_seed()));
  };
  TileShape reading = copying(problem);
  reading.copied_operand.reset();
  EXPECT_EQ(bits_of(copying(problem)), bits_of(reading));
}

/// The checks above would see it: each of these makes them fail.
TEST(CopiedOperandFaults, AreSeen) {
  const auto passes = [](const checking::CheckCase& test, const char* text, const char* instead) {
    return check_of(test, {.forward = {text, instead}}).passed();
  };
  EXPECT_FALSE(passes(by_batch, "call.d_o.batch == 0 ? 0 : b", "0")) << "another batch's";
  EXPECT_FALSE(passes(by_head, "call.d_o.head == 0 ? 0 : h", "0")) << "another head's";
  EXPECT_FALSE(passes(by_head, "first_key, call.seq_kv);\n}", "0, call.seq_kv);\n}")) << "other keys'";
  EXPECT_FALSE(passes(by_head, "query_tile * kQueries, call.seq_q, first_key", "0, call.seq_q, first_key"))
      << "other queries'";
  EXPECT_FALSE(passes(by_head, "row = threadIdx.x / 32 * 16 + half * 8 + lane / 4;\n    const unsigned both",
                      "row = threadIdx.x / 32 * 16 + lane / 4;\n    const unsigned both"))
      << "another row's";
}

TEST(CopiedOperandFaultsDeathTest, AreSeen) {
  EXPECT_DEATH(check_of(by_head, {.forward = {"leave(tiles.copied_empty + ring.stage);", ""}}),
               "threads wait for each other forever");
  EXPECT_DEATH(check_of(by_head, {.forward = {"  wait_for(tiles.copied_empty + ring.stage, ring.phase ^ 1);\n", ""}}),
               "more arrivals than a barrier has");
}

TEST(CopiedOperandOf, IsOneThatVariesAlongQueriesAndKeysInRowsThatBoxesTake) {
  EXPECT_EQ(copied_operand(by_head.problem), 0U);
  EXPECT_EQ(copied_operand(of_all.problem), 1U);
  const auto copied = [](const auto& change) {
    checking::CheckCase test = by_head;
    change(test.problem);
    return copied_operand(test.problem).has_value();
  };
  const auto resized = [](AttentionProblem& problem) {
    problem.operands[0].shape = problem::default_spec(problem, problem.program.operands()[0]).shape;
  };
  EXPECT_TRUE(copied([&](AttentionProblem& problem) { problem.seq_q = 77, resized(problem); }));
  EXPECT_FALSE(copied([&](AttentionProblem& problem) { problem.seq_kv = 392, resized(problem); })) << "keys";
  EXPECT_FALSE(copied([](AttentionProblem& problem) { problem.dtype = DType::kBF16; })) << "q's dtype";
  EXPECT_FALSE(copied([](AttentionProblem& problem) { problem.index_offsets = true; })) << "offsets";
  EXPECT_FALSE(copied([](AttentionProblem& problem) { problem.tokens_q = 300; })) << "ragged";
  EXPECT_FALSE(copied([](AttentionProblem& problem) { problem.dim_qk = 192, problem.dim_v = 128; })) << "shared memory";
  const auto with_strides = [](std::vector<std::int64_t> strides) {
    return [strides](AttentionProblem& problem) { problem.operands[0].strides = strides; };
  };
  EXPECT_TRUE(copied(with_strides({200 * 392, 392, 1}))) << "gaps";
  EXPECT_FALSE(copied(with_strides({200 * 390, 390, 1}))) << "rows at other multiples";
  EXPECT_FALSE(copied(with_strides({200 * 384, 1, 200}))) << "keys apart";
  EXPECT_FALSE(copied_operand(test::copied_operand_case("operand x: f32 [q_idx]\nvalue = score + x").problem))
      << "queries alone";
  EXPECT_FALSE(copied_operand(test::copied_operand_case("value = score").problem)) << "no operand";
}

TEST(CopiedOperandOf, TilesFitIntoSharedMemory) {
  for (const std::int64_t dim : {32, 64, 96, 128}) {
    const compiler::CompiledProblem compiled = compiler::compile(test::copied_operand_case(by_head.name, dim).problem);
    const DirectionKernels made(compiled, Direction::kForward, copying(compiled.problem));
    EXPECT_LE(made.launches().back().shared_bytes, static_cast<std::size_t>(kHopperSharedBytes)) << dim;
  }
}

bool copies(const Candidate& candidate) { return candidate.label.find("tiles of x copied") != std::string::npos; }

/// As an H200 took it: half the time. What vouches for it is a trial of the same structure.
TEST(CopiedOperandOf, IsOfferedBeforeReads) {
  AttentionProblem problem = problem_of("operand x: f32 [h, q_idx, kv_idx]\nvalue = score + x");
  problem.operands[0].dtype = problem.dtype;
  const auto of = [](const AttentionProblem& p, const Target& target) {
    std::vector<Candidate> candidates = candidates_of(p, Direction::kForward, target);
    const auto copied = std::ranges::stable_partition(candidates, std::not_fn(copies));
    EXPECT_LE(copied.size(), 1U);
    return candidates;
  };
  const std::vector<Candidate> candidates = of(problem, h200());
  const Candidate& copying = candidates.back();
  ASSERT_TRUE(copies(copying));
  for (const Candidate& other : candidates) {
    if (&other == &copying) continue;
    EXPECT_NE(other.structural_key, copying.structural_key);
    EXPECT_NE(other.plan_key, copying.plan_key);
  }
  EXPECT_LT(copying.predicted.milliseconds, candidates.front().predicted.milliseconds);
  EXPECT_FALSE(copies(of(problem, a100()).back()));
  const compiler::CompiledProblem trial = verification::trial_problem(compiler::compile(problem));
  EXPECT_LT(trial.problem.seq_kv, problem.seq_kv);
  EXPECT_EQ(of(trial.problem, h200()).back().structural_key, copying.structural_key);
  problem.operands[0].dtype = DType::kF32;
  EXPECT_FALSE(copies(of(problem, h200()).back()));
}

}  // namespace
}  // namespace scoremod::backend::kernels
