// The kernels with FP8 products on a host, thread by thread, against the float64 oracle: their WGMMAs, copies and
// barriers are the emulated device's.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "backend/kernels/float8/family.hpp"
#include "base/concat.hpp"
#include "compiler/pipeline.hpp"
#include "problem/tensor_view.hpp"
#include "support/attention_kernels_cases.hpp"
#include "support/check_report.hpp"
#include "support/emulated_attention.hpp"
#include "support/float8_cases.hpp"

namespace scoremod::backend::kernels {
namespace {

AnyShape shape_of(const AttentionProblem& problem, Direction) {
  return std::shared_ptr<const Variant>(float8_variant(float8_shape(problem)));
}

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
checking::CheckCase many_tiles(const char* name) {
  checking::CheckCase test = case_of(name);
  test.problem.seq_q = 200;
  test.problem.seq_kv = 1200;
  for (OperandSpec& operand : test.problem.operands)
    operand =
        problem::default_spec(test.problem, test.problem.program.operands()[&operand - test.problem.operands.data()]);
  return test;
}

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

/// The checks above would see it: each of these makes them fail.
TEST(Float8KernelFaults, AreSeen) {
  const checking::CheckCase plain = many_tiles("plain");
  const auto fault = [&](const char* text, const char* instead) { return check_of(plain, {text, instead}); };
  EXPECT_FALSE(fault("position % 4 / 2 * 8", "position % 4 / 2 * 2").passed()) << "keys in another order";
  EXPECT_FALSE(fault("add_product(rows, product);\n    first_key", "first_key").passed()) << "tiles that are left out";
  EXPECT_FALSE(fault("close_row(sink, shifted(", "close_row(sink, (").passed()) << "the LSE of weights 2^8 as large";
  EXPECT_FALSE(fault("factor *= of_values", "factor *= 1.0f").passed()) << "the scale of v";
  EXPECT_FALSE(fault("p.call.scale * (load_constant", "1.0f * (load_constant").passed()) << "the scale";
  EXPECT_FALSE(fault("scale_output(rows, factors);\n  weigh", "weigh").passed()) << "sums by another reference";
  EXPECT_FALSE(fault("float kSlack = kFloat8Queries ? 0.75f", "float kSlack = kFloat8Queries ? 8.0f").passed())
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
  EXPECT_DEATH(fault("consumer_release(tiles.v_empty + at.stage);", ""), "threads wait for each other forever");
  EXPECT_DEATH(fault("mbarrier_wait(tiles.k_empty + ring.stage, ring.phase ^ 1);", ""),
               "more bytes than a barrier expects|a copy that its barrier|more arrivals|wait for each other");
  EXPECT_DEATH(fault("  fence_operand(weights);\n  wgmma_fence();", "  fence_operand(weights);"),
               "a product before wgmma_fence");
}

}  // namespace
}  // namespace scoremod::backend::kernels
