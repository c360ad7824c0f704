// Hopper's forward and fused backward with a TMA-loaded bias, on a host, thread by thread. They are right by the
// float64 oracle, and a forward gives the same bits as reads of each number.

#include <algorithm>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "backend/kernels/hopper/family.hpp"
#include "compiler/pipeline.hpp"
#include "problem/tensor_view.hpp"
#include "support/attention_kernels_cases.hpp"
#include "support/check_report.hpp"
#include "support/emulated_attention.hpp"
#include "support/loaded_bias_cases.hpp"
#include "support/test_seed.hpp"
#include "support/tiled_call.hpp"
#include "unit/backend/kernels/kernel_candidates.hpp"
#include "verification/trial_problem.hpp"

namespace scoremod::backend::kernels {
namespace {

using Fault = test::EmulatedLaunches::Fault;

const std::vector<checking::CheckCase>& cases() {
  static const std::vector<checking::CheckCase> all = test::loaded_bias_cases();
  return all;
}
const checking::CheckCase &by_head = cases()[0], &by_batch = cases()[1], &by_both = cases()[2], &of_all = cases()[3];

HopperShape copying(const AttentionProblem& problem) {
  return copying_hopper_shape(problem, loaded_bias(problem, Direction::kForward).value());
}

CheckReport check_of(const checking::CheckCase& test, const test::EmulatedFaults& faults = {}) {
  return test::check_emulated(
      test, random_inputs(test.problem), [](const AttentionProblem& problem, Direction) { return copying(problem); },
      faults);
}

class LoadedBias : public ::testing::TestWithParam<std::size_t> {};

TEST_P(LoadedBias, IsRight) {
  SCOPED_TRACE(cases()[GetParam()].name);
  test::expect_right(check_of(cases()[GetParam()]));
}
INSTANTIATE_TEST_SUITE_P(Cases, LoadedBias, ::testing::Range(std::size_t{0}, cases().size()));

/// TMA cannot take the pointers of these calls.
TEST(LoadedBiasOf, IsRightWhereThreadsCopyIt) {
  const Fault one_thread{"(!kLoadsBias || call.copied.aligned)", "false"},
      boxes{"if (tensor.aligned) {", "if (false) {"};
  test::expect_right(check_of(by_both, {.forward = one_thread, .of_both = boxes}));
}

TEST(LoadedBiasOf, GivesTheBitsOfReads) {
  const AttentionProblem problem = compiler::compile(by_batch.problem).problem;
  const std::vector inputs{random_inputs(problem), test::poisoned_inputs(problem, 0)};
  const auto bits_of = [&](const HopperShape& shape) {
    return test::emulated_forward_bits(by_batch, inputs, shape, static_cast<unsigned>(test::test_seed()));
  };
  HopperShape reading = copying(problem);
  reading.loaded_bias.reset();
  EXPECT_EQ(bits_of(copying(problem)), bits_of(reading));
}

/// The checks above would see it: each of these makes them fail.
TEST(LoadedBiasFaults, AreSeen) {
  const auto passes = [](const checking::CheckCase& test, const char* text, const char* instead) {
    return check_of(test, {.forward = {text, instead}}).passed();
  };
  EXPECT_FALSE(passes(by_batch, "call.copied.batch == 0 ? 0 : b", "0")) << "another batch's";
  EXPECT_FALSE(passes(by_head, "call.copied.head == 0 ? 0 : h", "0")) << "another head's";
  EXPECT_FALSE(passes(by_head, "first_key, call.seq_kv);\n}", "0, call.seq_kv);\n}")) << "other keys'";
  EXPECT_FALSE(passes(by_head, "query_tile * kQueries, call.seq_q, first_key", "0, call.seq_q, first_key"))
      << "other queries'";
  EXPECT_FALSE(passes(by_head, "row = threadIdx.x / 32 * 16 + half * 8 + lane / 4;\n    const unsigned both",
                      "row = threadIdx.x / 32 * 16 + lane / 4;\n    const unsigned both"))
      << "another row's";
}

TEST(LoadedBiasFaultsDeathTest, AreSeen) {
  EXPECT_DEATH(check_of(by_head, {.forward = {"consumer_release(tiles.copied_empty + ring.stage);", ""}}),
               "threads wait for each other forever");
  EXPECT_DEATH(
      check_of(by_head, {.forward = {"  mbarrier_wait(tiles.copied_empty + ring.stage, ring.phase ^ 1);\n", ""}}),
      "more arrivals than a barrier has");
}

const std::vector<checking::CheckCase>& backward_cases() {
  static const std::vector<checking::CheckCase> all = test::loaded_bias_backward_cases();
  return all;
}

CheckReport backward_check_of(const checking::CheckCase& test, const test::EmulatedFaults& faults = {}) {
  const auto shape_of = [](const AttentionProblem& problem, Direction direction) {
    return direction == Direction::kForward
               ? copying(problem)
               : copying_fused_shape(problem, loaded_bias(problem, Direction::kBackward).value());
  };
  return test::check_emulated(test, random_inputs(test.problem), shape_of, faults);
}

class LoadedBiasBackward : public ::testing::TestWithParam<std::size_t> {};

TEST_P(LoadedBiasBackward, IsRight) {
  SCOPED_TRACE(backward_cases()[GetParam()].name);
  test::expect_right(backward_check_of(backward_cases()[GetParam()]));
}
INSTANTIATE_TEST_SUITE_P(Cases, LoadedBiasBackward, ::testing::Range(std::size_t{0}, backward_cases().size()));

TEST(LoadedBiasBackwardOf, IsRightWhereThreadsCopyIt) {
  const char* const fill = "fill_tile<kStep, 64, 32>(tiles.copied + group * (KeyTiles::kCopiedBytes / 2), copied,";
  const std::string by_threads =
      std::string("TensorArgument unaligned = copied;\n  unaligned.aligned = 0;\n  ") +
      "fill_tile<kStep, 64, 32>(tiles.copied + group * (KeyTiles::kCopiedBytes / 2), unaligned,";
  test::expect_right(backward_check_of(backward_cases()[1], {.backward = {fill, by_threads}}));
}

/// Threads copy q and d_o, too: a group's warp copies its numbers between them.
TEST(LoadedBiasBackwardOf, IsRightWhereThreadsCopyEverything) {
  const test::EmulatedFaults by_threads{
      .forward = {"(!kLoadsBias || call.copied.aligned)", "false"},
      .backward = {"return call.q.aligned && call.k.aligned && call.v", "return false && call.v"},
      .of_both = {"if (tensor.aligned) {", "if (false) {"}};
  test::expect_right(backward_check_of(backward_cases()[1], by_threads));
}

TEST(LoadedBiasBackwardFaults, AreSeen) {
  const auto passes = [](std::size_t number, const char* text, const char* instead) {
    return backward_check_of(backward_cases()[number], {.backward = {text, instead}}).passed();
  };
  EXPECT_FALSE(passes(1, "copied.batch == 0 ? 0 : b", "0")) << "another batch's";
  EXPECT_FALSE(passes(0, "copied.head == 0 ? 0 : h", "0")) << "another head's";
  EXPECT_FALSE(passes(0, "key_tile * kKeys + group * 64, all.rest.call.seq_kv", "group * 64, all.rest.call.seq_kv"))
      << "other keys'";
  EXPECT_FALSE(passes(0, "h, first_query,\n                           all.rest.call.seq_q",
                      "h, 0,\n                           all.rest.call.seq_q"))
      << "other queries'";
  EXPECT_FALSE(passes(0, "threadIdx.x % kGroup / 32 * 16 + e / 2 * 8", "threadIdx.x % kGroup / 32 * 16"))
      << "another key's";
}

TEST(LoadedBiasBackwardFaultsDeathTest, AreSeen) {
  EXPECT_DEATH(
      backward_check_of(backward_cases()[0], {.backward = {"consumer_release(tiles.copied_empty + own_group());", ""}}),
      "threads wait for each other forever");
  EXPECT_DEATH(backward_check_of(backward_cases()[0],
                                 {.backward = {"  mbarrier_wait(tiles.copied_empty + group, ring.phase ^ 1);\n", ""}}),
               "more arrivals than a barrier has");
}

TEST(LoadedBiasOf, IsOneThatVariesAlongQueriesAndKeysInRowsThatBoxesTake) {
  EXPECT_EQ(loaded_bias(by_head.problem, Direction::kForward), 0U);
  EXPECT_EQ(loaded_bias(of_all.problem, Direction::kForward), 1U);
  const auto copied = [](const auto& change) {
    checking::CheckCase test = by_head;
    change(test.problem);
    return loaded_bias(test.problem, Direction::kForward).has_value();
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
  EXPECT_TRUE(copied(with_strides({std::int64_t{200} * 392, 392, 1}))) << "gaps";
  EXPECT_FALSE(copied(with_strides({std::int64_t{200} * 390, 390, 1}))) << "rows at other multiples";
  EXPECT_FALSE(copied(with_strides({std::int64_t{200} * 384, 1, 200}))) << "keys apart";
  EXPECT_FALSE(
      loaded_bias(test::loaded_bias_case("operand x: f32 [q_idx]\nvalue = score + x").problem, Direction::kForward))
      << "queries alone";
  EXPECT_FALSE(loaded_bias(test::loaded_bias_case("value = score").problem, Direction::kForward)) << "no operand";
  EXPECT_FALSE(loaded_bias(by_head.problem, Direction::kBackward)) << "shared memory";
}

TEST(LoadedBiasOf, TilesFitIntoSharedMemory) {
  for (const std::int64_t dim : {32, 64, 96, 128}) {
    const compiler::CompiledProblem compiled = compiler::compile(test::loaded_bias_case(by_head.name, dim).problem);
    const KernelCall made = test::attention_call(compiled, Direction::kForward, copying(compiled.problem));
    EXPECT_LE(made.launches().back().shared_bytes, kHopperSharedBytes) << dim;
  }
  for (const std::int64_t dim : {72, 96, 128}) {
    AttentionProblem problem = test::loaded_bias_case(by_head.name, dim).problem;
    problem.backward = true;
    EXPECT_EQ(loaded_bias(problem, Direction::kBackward), 0U) << dim;
  }
}

bool copies(const Candidate& candidate) { return candidate.label.find("tiles of x copied") != std::string::npos; }

/// The candidates; the last one has the TMA-loaded bias.
std::vector<Candidate> offered(const AttentionProblem& problem, Direction direction, const Target& target) {
  std::vector<Candidate> candidates = candidates_of(problem, direction, target);
  const auto copied = std::ranges::stable_partition(candidates, std::not_fn(copies));
  EXPECT_LE(copied.size(), 1U);
  return candidates;
}

class LoadedBiasIn : public ::testing::TestWithParam<Direction> {};

/// An H200 took half the time. A trial of the same structure verifies it.
TEST_P(LoadedBiasIn, IsOfferedBeforeReads) {
  AttentionProblem problem = problem_of("operand x: f32 [h, q_idx, kv_idx]\nvalue = score + x");
  problem.operands[0].dtype = problem.dtype;
  problem.operands[0].gradient = false;
  problem.dim_qk = problem.dim_v = 128;
  problem.backward = GetParam() == Direction::kBackward;
  const std::vector<Candidate> candidates = offered(problem, GetParam(), h200());
  const Candidate& copying = candidates.back();
  ASSERT_TRUE(copies(copying));
  for (const Candidate& other : candidates) {
    if (&other == &copying) continue;
    EXPECT_NE(other.structural_key, copying.structural_key);
    EXPECT_NE(other.plan_key, copying.plan_key);
    EXPECT_LT(copying.predicted.milliseconds, other.predicted.milliseconds) << other.label;
  }
  EXPECT_FALSE(copies(offered(problem, GetParam(), a100()).back()));
  const compiler::CompiledProblem trial = verification::trial_problem(compiler::compile(problem));
  EXPECT_LT(trial.problem.seq_kv, problem.seq_kv);
  EXPECT_EQ(offered(trial.problem, GetParam(), h200()).back().structural_key, copying.structural_key);
  problem.operands[0].dtype = DType::kF32;
  EXPECT_FALSE(copies(offered(problem, GetParam(), h200()).back()));
}
INSTANTIATE_TEST_SUITE_P(Directions, LoadedBiasIn, ::testing::Values(Direction::kForward, Direction::kBackward));

}  // namespace
}  // namespace scoremod::backend::kernels
