// The kernels with FP8 products on a host, thread by thread, against the float64 oracle: their WGMMAs, copies and
// barriers are the emulated device's.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "backend/kernels/backend/kernels_backend.hpp"
#include "backend/kernels/float8/family.hpp"
#include "backend/memory_space.hpp"
#include "base/concat.hpp"
#include "check/random_problem.hpp"
#include "compiler/pipeline.hpp"
#include "problem/implied_operands.hpp"
#include "support/attention_kernels_cases.hpp"
#include "support/check_report.hpp"
#include "support/emulated_attention.hpp"
#include "support/emulated_plans.hpp"
#include "support/float8_cases.hpp"
#include "support/test_seed.hpp"
#include "verification/trial.hpp"
#include "verification/verdict.hpp"
#include "verification/verify_plan.hpp"

namespace scoremod::backend::kernels {
namespace {

AnyShape shape_of(const AttentionProblem& problem, Direction) { return float8_shape(problem); }

checking::CheckCase case_of(const std::string& name) {
  const std::vector<checking::CheckCase> cases = test::float8_cases(true);
  return cases.at(static_cast<std::size_t>(std::ranges::find(cases, name, &checking::CheckCase::name) - cases.begin()));
}

/// Rows that are not finite are not recomputed, so that faults show.
const test::EmulatedLaunches::Fault kOnce{
    "inline bool any_of_block(bool condition) { return emulated::block_meet(condition); }",
    "inline bool any_of_block(bool condition) { emulated::block_meet(condition); return false; }"};

CheckReport check_of(const checking::CheckCase& test, const test::EmulatedLaunches::Fault& fault = {}) {
  EXPECT_TRUE(float8_objections(compiler::compile(test.problem).problem).empty());
  return test::check_emulated(test, random_inputs(test.problem), shape_of, {fault, {}, kOnce});
}

class Float8Kernels : public ::testing::TestWithParam<std::string> {};

TEST_P(Float8Kernels, AreRight) { test::expect_right(check_of(case_of(GetParam()))); }

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const checking::CheckCase& test : test::float8_cases(true)) all.push_back(test.name);
  return all;
}
INSTANTIATE_TEST_SUITE_P(Cases, Float8Kernels, ::testing::ValuesIn(names()));

class Float8KernelsOfPoison : public ::testing::TestWithParam<const char*> {};

TEST_P(Float8KernelsOfPoison, AreRight) {
  const checking::CheckCase test = case_of(GetParam());
  test::expect_right(test::check_emulated(test, test::poisoned_inputs(test.problem, 0), shape_of));
}
INSTANTIATE_TEST_SUITE_P(Cases, Float8KernelsOfPoison, ::testing::Values("plain", "causal", "documents"));

/// Rings of tiles go round more than once, and the last tiles are cut off.
checking::CheckCase many_tiles(const char* name) { return test::with_lengths(case_of(name), 200, 1200); }

checking::CheckCase of_dims(checking::CheckCase test, std::int64_t dim_qk, std::int64_t dim_v) {
  test.problem.dim_qk = dim_qk;
  test.problem.dim_v = dim_v;
  return test;
}

TEST(Float8KernelRings, AreRightOverManyTiles) {
  for (const char* const name : {"plain", "causal with offsets", "documents"}) {
    SCOPED_TRACE(name);
    test::expect_right(check_of(many_tiles(name)));
  }
}

TEST(Float8KernelRings, AreRightInAllHeadDims) {
  for (const auto& [dim_qk, dim_v] : {std::pair{32, 128}, {128, 64}, {160, 96}, {256, 128}}) {
    SCOPED_TRACE(concat(dim_qk, " and ", dim_v));
    test::expect_right(check_of(of_dims(case_of("causal"), dim_qk, dim_v)));
  }
}

/// Rows of v may lie anywhere.
checking::CheckCase unaligned_values() {
  checking::CheckCase test = many_tiles("plain");
  AttentionProblem& p = test.problem;
  p.v = TensorLayout{Layout::kBSHD,
                     Strides{p.heads_kv * p.seq_kv * (p.dim_v + 3), p.dim_v + 3, p.heads_kv * (p.dim_v + 3), 1}};
  return test;
}
TEST(Float8KernelRings, TransposeValuesThatAreNotAligned) { test::expect_right(check_of(unaligned_values())); }

/// The planner cannot know that a call's q lies at an odd address: its numbers are then copied one by one.
TEST(Float8KernelRings, CopyTensorsThatTmaCannotLoad) {
  const checking::CheckCase test = many_tiles("causal with offsets");
  const test::EmulatedLaunches::Fault tiles{"if (tensor.aligned) {\n    if (thread == 0) load",
                                            "if (false) {\n    if (thread == 0) load"};
  const test::EmulatedLaunches::Fault threads{"call.q.aligned && call.k.aligned && threadIdx", "false && threadIdx"};
  test::expect_right(test::check_emulated(test, random_inputs(test.problem), shape_of, {tiles, {}, threads}));
}

checking::CheckCase random_case(std::uint64_t seed) {
  checking::RandomProblemOptions options;
  options.dtypes = {DType::kBF16};
  options.head_dims = {32, 64, 96, 128};
  options.row_alignment = 16;
  options.shifted_value_probability = 0.3;
  options.lengths_probability = options.dropout_probability = options.max_logit_probability = 0.2;
  options.sink_probability = 0.3;
  checking::CheckCase test = checking::random_problem(seed, options);
  AttentionProblem& p = test.problem;
  p.backward = p.given_deltas = false;
  p.d_o = p.dq = p.dk = p.dv = std::nullopt;
  p.dtype_o = seed % 2 == 0 ? DType::kF32 : DType::kBF16;
  p.dtype = DType::kE4M3;
  for (OperandSpec& operand : p.operands) operand.gradient = false;
  p = problem::with_implied_operands(std::move(p));
  return test;
}

TEST(Float8KernelRandomProblems, AreRight) {
  constexpr int kProblems = 8;
  int tried = 0;
  for (std::uint64_t seed = test::test_seed(); tried < kProblems; ++seed) {
    const checking::CheckCase test = random_case(seed);
    if (!float8_objections(compiler::compile(test.problem).problem).empty()) continue;
    ++tried;
    SCOPED_TRACE(concat("seed ", seed, "\n", test.problem.program.to_string()));
    RandomInputOptions inputs;
    inputs.seed = test.seed;
    inputs.overrides = test.fills;
    test::expect_right(test::check_emulated(test, random_inputs(test.problem, inputs), shape_of));
  }
}

/// The outputs of a trial of the problem's kernels that are wrong; empty if there are none.
std::string wrong_in_trial(const checking::CheckCase& test, const test::EmulatedLaunches::Fault& fault = {}) {
  const compiler::CompiledProblem subject = compiler::compile(test.problem);
  verification::Trial trial(subject);
  const compiler::CompiledProblem& tried = trial.problem();
  const auto plan = test::emulated_forward_plan(tried, *float8_variant(float8_shape(tried.problem)), fault);
  const verification::OperationErrors errors{kernels_backend().function_error(), kernels_backend().product_error(),
                                             kernels_backend().forward_rounding(tried)};
  const verification::Verdict verdict = verification::verdict_of(
      verification::verify_forward(trial, *plan, backend::host_memory(), errors), Direction::kForward);
  return verdict.right ? "" : verdict.reason;
}

TEST(Float8KernelTrials, FindThemRight) {
  for (const char* const name : {"plain", "causal", "documents", "mask by the score", "one query"}) {
    SCOPED_TRACE(name);
    EXPECT_EQ(wrong_in_trial(case_of(name)), "");
  }
}

constexpr const char* kFirstHalf = "    add_values<0>(rows, product);\n    issue";
constexpr const char* kNoFirstHalf = "    wgmma_wait<0>();\n    issue";

TEST(Float8KernelTrials, SeeFaults) {
  EXPECT_NE(wrong_in_trial(many_tiles("plain"), {"position % 4 / 2 * 8", "position % 4 / 2 * 2"}), "");
  EXPECT_NE(wrong_in_trial(many_tiles("plain"), {kFirstHalf, kNoFirstHalf}), "");
  EXPECT_NE(wrong_in_trial(many_tiles("plain"), {"factor *= of_values", "factor *= of_values * 1.1f"}), "");
}

/// The checks above would see it: each of these makes them fail.
TEST(Float8KernelFaults, AreSeen) {
  const checking::CheckCase plain = many_tiles("plain");
  const auto fault = [&](const char* text, const char* instead) { return check_of(plain, {text, instead}); };
  EXPECT_FALSE(fault("position % 4 / 2 * 8", "position % 4 / 2 * 2").passed()) << "keys in another order";
  EXPECT_FALSE(fault(kFirstHalf, kNoFirstHalf).passed()) << "halves of tiles that are left out";
  EXPECT_FALSE(fault("close_row(sink, shifted(", "close_row(sink, (").passed()) << "the LSE of weights 2^8 as large";
  EXPECT_FALSE(fault("factor *= of_values", "factor *= 1.0f").passed()) << "the scale of v";
  EXPECT_FALSE(fault("p.call.scale * (load_constant", "1.0f * (load_constant").passed()) << "the scale";
  EXPECT_FALSE(fault("if (rescale) rescale_output(rows, factors);", "").passed()) << "sums by another row max";
  EXPECT_FALSE(fault("wgmma_wait<1>();", "wgmma_wait<2>();").passed()) << "scores that are not there yet";
  EXPECT_FALSE(
      fault("float kRescaleThreshold = kFloat8Queries ? 0.75f", "float kRescaleThreshold = kFloat8Queries ? 8.0f")
          .passed())
      << "weights beyond the largest number";
  EXPECT_FALSE(fault("k % kRowBytes), k != 0);\n}\n\n// Issues the WGMMAs of sums = w b",
                     "k % kRowBytes), false);\n}\n\n// Issues")
                   .passed())
      << "a part of the dims alone";
  EXPECT_FALSE(fault("cta_sync();\n  const TensorArgument& transposed", "const TensorArgument& transposed").passed())
      << "values that other threads have yet to load";
}

TEST(Float8KernelFaultsDeathTest, AreSeen) {
  const checking::CheckCase plain = many_tiles("plain");
  const auto fault = [&](const char* text, const char* instead) { check_of(plain, {text, instead}); };
  EXPECT_DEATH(fault("consumer_release(tiles.v_empty + last.stage);", ""), "threads wait for each other forever");
  EXPECT_DEATH(fault("mbarrier_wait(tiles.k_empty + ring.stage, ring.phase ^ 1);", ""),
               "more bytes than a barrier expects|a copy that its barrier|more arrivals|wait for each other");
  EXPECT_DEATH(fault("  fence_operand(weights);\n  wgmma_fence();", "  fence_operand(weights);"),
               "a product before wgmma_fence");
}

}  // namespace
}  // namespace scoremod::backend::kernels
