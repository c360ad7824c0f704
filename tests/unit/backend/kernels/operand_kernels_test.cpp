// Gradients of operands from tiles of scores, by kernels that do nothing else and beside a backward.

#include <algorithm>
#include <string_view>

#include <gtest/gtest.h>

#include "scoremod/inputs.hpp"

#include "backend/kernels/hopper/family.hpp"
#include "backend/kernels/operand_gradients/operand_gradients.hpp"
#include "compiler/pipeline.hpp"
#include "problem/tensor_view.hpp"
#include "support/check_report.hpp"
#include "unit/backend/kernels/operand_case.hpp"

namespace scoremod::backend::kernels {
namespace {

using Case = OperandCase;
using Emulated = EmulatedOperands;

constexpr const char* kElementsAndSums =
    "operand half: f32 [b, h, q_idx, kv_idx]\noperand x: f32 [b, q_idx]\noperand y: f32 [h, kv_idx]\noperand z: f32 "
    "[h]\nvalue = score * z + half * y + x\nkeep = kv_idx % 5 != 3 & kv_idx <= q_idx + 60";
const Case kCases[] = {
    {"Slopes", "operand slope: f32 [h]\nvalue = score + slope * f32(kv_idx - q_idx)\nkeep = kv_idx <= q_idx + 9"},
    {"OneNumber", "operand x: f32 []\nvalue = score * x\nkeep = kv_idx % 3 != 1"},
    {"AlongQueries",
     "operand half: f32 [b, q_idx]\noperand y: f32 [b, h]\nvalue = (score + y) * half\nkeep = kv_idx <= q_idx + 9"},
    {"AlongKeys", "operand x: f32 [h, kv_idx]\noperand half: f32 [kv_idx]\nvalue = tanh(score * x) + half"},
    {"OfElements",
     "operand half: f32 [b, h, q_idx, kv_idx]\noperand y: f32 [h]\nvalue = score * y + half\nkeep = kv_idx + 70 <= "
     "q_idx"},
    {"ASink", "value = score\nkeep = kv_idx + 40 <= q_idx", Sink::kLearned, 0.0F, {}, 2, 2, 2},
    {"SinkAndDropout",
     "operand x: f32 [h]\noperand y: f32 [kv_idx]\nvalue = score * x + y",
     Sink::kLearned,
     0.4F,
     {0, 0, 5, 6}},
    {"SinkAmongFewKeys", "operand x: f32 [h]\nvalue = score * x", Sink::kLearned, 0.0F, {}, 2, 2, 1, 140, 4},
    {"OfElementsRagged", kElementsAndSums, Sink::kNone, 0.0F, {}, 3, 2, 1, 240, 150, ragged},
    {"OfElementsWithGivenDeltas", kElementsAndSums, Sink::kOffByOne, 0.2F, {}, 2, 2, 2, 140, 90, with_given_deltas},
    {"OfElementsInFloats", kElementsAndSums, Sink::kNone, 0.0F, {}, 1, 2, 1, 100, 130, in_floats},
    // Products with d_o in bf16, which the deltas were not made of, were a thousandth off.
    {"KeysWithGivenDeltasOfFloats",
     "operand x: f32 [b, kv_idx]\nvalue = (score - x) * 0.76",
     Sink::kNone,
     0.0F,
     {},
     2,
     1,
     1,
     3,
     40,
     with_given_deltas_of_floats},
    {"OfElementsOfATable",
     "operand x: f32 [b, h, q_idx, kv_idx]\noperand half: f32 [b, h, q_idx, kv_idx]\nvalue = tanh(score * x) + half * "
     "half\nkeep = x > -0.5",
     Sink::kNone,
     0.0F,
     {0, 0, 3, 5}},
};

/// Over columns of tiles with gaps, with heads that share keys and rows without a key; Hopper kernels alone sum tables.
const Case kHopperCases[] = {
    {"TableByHead",
     "table x: f32 rank 2\nvalue = score + x[max(min(kv_idx - q_idx, 20), -20) + 20, h]\nkeep = kv_idx // 150 == q_idx "
     "// 150 | kv_idx < 9",
     Sink::kNone,
     0.0F,
     {},
     1,
     2,
     1,
     430,
     290},
    {"TableWithSlopesAndKeys",
     "table x: f32 rank 2\noperand y: f32 [h]\noperand z: f32 [kv_idx]\nvalue = score * z + x[min(abs(kv_idx - q_idx), "
     "40), h] + y * f32(kv_idx - q_idx) * 0.01\nkeep = kv_idx + 70 <= q_idx",
     Sink::kLearned,
     0.2F,
     {0, 0, 5, 6},
     2,
     2,
     2,
     270,
     190,
     of_wider_heads},
    {"ElementsInTiles",
     "operand half: f32 [b, h, q_idx, kv_idx]\nvalue = score + half\nkeep = kv_idx // 150 == q_idx // 150",
     Sink::kNone,
     0.0F,
     {},
     1,
     2,
     1,
     300,
     290},
    {"CopiedElements",
     "operand half: f32 [b, h, q_idx, kv_idx]\nvalue = tanh(score * half) + half\nkeep = kv_idx // 150 == q_idx // 150",
     Sink::kNone,
     0.0F,
     {},
     1,
     2,
     1,
     300,
     256,
     that_are_copied},
    {"TableRagged",
     "table x: f32 rank 2\nvalue = score * (1.0 + x[(kv_idx - q_idx) // 9 + 20, h])",
     Sink::kNone,
     0.0F,
     {},
     3,
     2,
     1,
     240,
     150,
     ragged},
};

const Case& case_named(std::string_view name) {
  const auto* const found = std::ranges::find(kCases, name, &Case::name);
  return found != std::end(kCases) ? *found : *std::ranges::find(kHopperCases, name, &Case::name);
}

class OperandKernelsRun : public ::testing::TestWithParam<Case> {};

TEST_P(OperandKernelsRun, IsRight) { test::expect_right(check_of(GetParam())); }
TEST_P(OperandKernelsRun, IsRightBesideTheBackward) { test::expect_right(check_of(GetParam(), {}, Gains::kBeside)); }
TEST_P(OperandKernelsRun, IsRightBesideTheBackwardOfHopper) {
  const std::string name = GetParam().name;
  if (name == "OneNumber" || name == "SinkAmongFewKeys" || name == "OfElementsInFloats") GTEST_SKIP() << "as others";
  if (name == "KeysWithGivenDeltasOfFloats") GTEST_SKIP() << "Hopper's backward reads d_o in q's dtype";
  test::expect_right(check_of(GetParam(), {}, Gains::kBeside, hopper));
}
INSTANTIATE_TEST_SUITE_P(Cases, OperandKernelsRun, ::testing::ValuesIn(kCases),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(OperandKernelsRun, OfManyTilesIsRightBesideTheBackwardOfHopper) {
  for (const Case& test : kHopperCases) {
    SCOPED_TRACE(test.name);
    test::expect_right(check_of(test, {}, Gains::kBeside, hopper));
  }
}

/// Gradients of elements whose numbers are copied ahead.
TEST(OperandKernelsRun, OfALoadedBiasIsRight) {
  const auto shape_of = [](const AttentionProblem& problem) {
    return copying_fused_shape(problem, loaded_bias(problem, Direction::kBackward).value());
  };
  test::expect_right(check_of(case_named("CopiedElements"), {}, Gains::kBeside, shape_of));
}

/// The fused backward, which accumulates dQ in the kernel of dk and dv.
class FusedOperandKernelsRun : public ::testing::TestWithParam<const char*> {};

TEST_P(FusedOperandKernelsRun, IsRight) {
  test::expect_right(check_of(case_named(GetParam()), {}, Gains::kBeside, hopper_fused_shape));
}
INSTANTIATE_TEST_SUITE_P(Cases, FusedOperandKernelsRun,
                         ::testing::Values("Slopes", "AlongKeys", "OfElements", "ASink", "SinkAndDropout",
                                           "OfElementsOfATable", "ElementsInTiles", "TableByHead",
                                           "TableWithSlopesAndKeys", "TableRagged"),
                         [](const auto& test) { return std::string(test.param); });

TEST(FusedOperandKernelsRun, FaultsAreSeen) {
  const auto passes = [](const char* name, const Fault& fault) {
    return check_of(case_named(name), fault, Gains::kBeside, hopper_fused_shape).passed();
  };
  EXPECT_FALSE(passes("Slopes", {"add_in_order(totals[t], element.gains[t], element.centred)",
                                 "add_in_order(totals[t], element.gains[t], 1.0f)"}));
  EXPECT_FALSE(passes("Slopes", {"begin_head(p, b, gains.h + 1, first_key)", "h += 1"})) << "another head's sums";
  EXPECT_FALSE(passes("ElementsInTiles", {"clear_empty_tiles_of_keys(p, batch, h, key_tile);", ";"}));
  EXPECT_FALSE(passes("TableByHead", {"(n + 1) * 8 - kDiagonalStep", "(n + 1) * 8"})) << "other columns";
  EXPECT_FALSE(passes("TableByHead", {"(kFused ? -difference : difference)", "difference"}));
  EXPECT_FALSE(passes("TableByHead", {"add_step(own_diagonal_sums(p, b, h, first_key / kKeys)",
                                      "add_step(own_diagonal_sums(p, b, h, 0)"}))
      << "other keys";
}

/// The gradients of operands, in whatever order warps run.
TEST(FusedOperandKernelsRun, GivesOperandsTheSameBitsEachTime) {
  const compiler::CompiledProblem compiled = compiler::compile(problem_of(case_named("TableWithSlopesAndKeys")));
  const auto same_bits = [&](const Fault& fault) {
    Emulated emulated(compiled, hopper_fused_shape(compiled.problem), fault, Gains::kBeside);
    emulated.run_twice();
    checking::check_subject(compiled, emulated.subject(), random_inputs(compiled.problem), CheckOptions());
    return emulated.has_same_bits();
  };
  EXPECT_TRUE(same_bits({}));
  EXPECT_FALSE(same_bits({"warpgroup_sync();  // nobody", ";  // nobody"})) << "a race";
}

/// The checks above would see it.
TEST(OperandKernelsRun, FaultsAreSeen) {
  EXPECT_FALSE(check_of(kCases[0], {"multiply_add(-delta, of_weight, of_product)", "of_product"}).passed());
  EXPECT_FALSE(check_of(kCases[4], {"  clear_empty_tiles(p, b, h, query_tile);", ""}).passed());
  EXPECT_FALSE(check_of(kCases[6], {"kDropout = true", "kDropout = false"}).passed());
  EXPECT_FALSE(check_of(kCases[7], {"if (kSink) weight +=", "if (false) weight +="}).passed());
  const auto beside = [](const Case& from, const Fault& fault) { return check_of(from, fault, Gains::kBeside); };
  EXPECT_FALSE(beside(kCases[0], {"multiply_add(-mean, of_weight, centred)", "centred + 1e-2f * of_weight"}).passed());
  EXPECT_FALSE(beside(kCases[3], {"if (kDk) move_gains_to(gains, p, b, steps.h, first_key);", ""}).passed());
  EXPECT_FALSE(beside(kCases[3], {"at[e / 2][t] += element.gains", "at[e / 2][t] += 1.01f * element.gains"}).passed());
  EXPECT_FALSE(beside(kCases[4], {"  clear_empty_tiles(p, b, h, query_tile);", ""}).passed());
  EXPECT_FALSE(beside(kCases[4], {"gains[kFirstElementTarget + t]", "gains[kFirstElementTarget + t] * 1.1f"}).passed());
  const Case& ragged = case_named("OfElementsRagged");
  EXPECT_FALSE(beside(ragged, {"queries) return write_no_gains(p, b, h, query_tile);", "queries) return;"}).passed());
  EXPECT_FALSE(beside(ragged, {"if (kDk) move_gains_to(none", "if (false) move_gains_to(none"}).passed());
  EXPECT_FALSE(beside(case_named("OfElementsWithGivenDeltas"), {"if (kGivenDeltas) mean = 0.0f;", ""}).passed());
  EXPECT_FALSE(beside(kCases[7], {"mean = multiply_add(-of_sink, terms[m][half][1], mean)", "mean += 0.0f"}).passed());
}

TEST(OperandTargets, SumEveryKindApartAndFewerBesideTheBackward) {
  const auto targets = [](const char* program, Gains gains) {
    const compiler::CompiledProblem compiled = compiler::compile(problem_of({"", program}));
    return operand_targets(compiled, problem::operands_with_gradient(compiled.problem), gains);
  };
  const auto sums = [&](const char* program, OperandSum apart, bool beside) {
    SCOPED_TRACE(program);
    EXPECT_EQ(targets(program, Gains::kApart).front().sum, apart);
    EXPECT_EQ(targets(program, Gains::kBeside).size(), beside ? 1u : 0u);
  };
  sums("operand x: f32 [h]\nvalue = score * x", OperandSum::kTotal, true);
  sums("operand x: f32 [h, q_idx, kv_idx]\nvalue = score + x", OperandSum::kShared, false);
  sums("operand x: f32 [b, h, q_idx, kv_idx]\nvalue = score + x", OperandSum::kElement, true);
  sums("table x: f32 rank 2\nvalue = score + x[kv_idx // 3 + q_idx, h]", OperandSum::kTable, false);
  sums("operand x: f32 [q_idx]\nvalue = score", OperandSum::kNothing, false);
  EXPECT_EQ(targets("table x: f32 rank 2\nvalue = score + x[kv_idx - q_idx, h]", Gains::kApart).front().sum,
            OperandSum::kTable);
}

}  // namespace
}  // namespace scoremod::backend::kernels
