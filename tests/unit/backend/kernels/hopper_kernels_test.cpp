// The Hopper kernels on a host, thread by thread, against the float64 oracle: their products, copies and barriers are
// the emulated device's.

#include <algorithm>

#include <gtest/gtest.h>

#include "backend/kernels/hopper/family.hpp"
#include "support/attention_kernels_cases.hpp"
#include "support/check_report.hpp"
#include "support/emulated_attention.hpp"

namespace scoremod::backend::kernels {
namespace {

HopperShape hopper_shape(const AttentionProblem& problem, Direction direction) {
  return hopper_shapes(problem, direction).front();
}

/// Without gradients of operands: these are other tests'.
checking::CheckCase case_of(const std::string& name) {
  std::vector<checking::CheckCase> cases = test::attention_kernels_cases(true);
  checking::CheckCase test = std::move(
      cases.at(static_cast<std::size_t>(std::ranges::find(cases, name, &checking::CheckCase::name) - cases.begin())));
  for (OperandSpec& operand : test.problem.operands) operand.gradient = false;
  return test;
}

/// The kernel of dk and dv makes dq too.
HopperShape fused_shape(const AttentionProblem& problem, Direction direction) {
  return direction == Direction::kForward ? hopper_shape(problem, direction) : hopper_fused_shape(problem);
}

/// Rows that are not finite are not recomputed, so that faults show.
const test::EmulatedLaunches::Fault kOnce{
    "inline bool any_of_block(bool condition) { return emulated::block_meet(condition); }",
    "inline bool any_of_block(bool condition) { emulated::block_meet(condition); return false; }"};

CheckReport check_of(const checking::CheckCase& test, const test::EmulatedLaunches::Fault& forward_fault = {},
                     const test::EmulatedLaunches::Fault& backward_fault = {},
                     const test::ShapeOf& shape_of = hopper_shape) {
  return test::check_emulated(test, random_inputs(test.problem), shape_of, {forward_fault, backward_fault, kOnce});
}

class HopperKernels : public ::testing::TestWithParam<const char*> {};

TEST_P(HopperKernels, AreRight) { test::expect_right(check_of(case_of(GetParam()))); }
INSTANTIATE_TEST_SUITE_P(Cases, HopperKernels,
                         ::testing::Values("plain f16", "causal with offsets", "global keys and a window",
                                           "nothing kept", "documents", "mask by the score", "wide heads",
                                           "192 and 128", "unaligned rows", "dropout by keys",
                                           "a learned sink, dropout and the largest score", "ragged",
                                           "ragged, many sequences", "ragged keys with dropout", "gradients elsewhere",
                                           "differences of every kind", "differences, ragged"));

class FusedHopperKernels : public ::testing::TestWithParam<const char*> {};

TEST_P(FusedHopperKernels, AreRight) {
  const checking::CheckCase test = case_of(GetParam());
  ASSERT_TRUE(hopper_fused_objections(test.problem, hopper_fused_shape(test.problem)).empty());
  test::expect_right(check_of(test, {}, {}, fused_shape));
}
INSTANTIATE_TEST_SUITE_P(Cases, FusedHopperKernels,
                         ::testing::Values("plain f16", "causal with offsets", "global keys and a window",
                                           "nothing kept", "documents", "mask by the score", "unaligned rows",
                                           "dropout by keys", "a learned sink, dropout and the largest score", "ragged",
                                           "ragged, many sequences", "ragged keys with dropout", "gradients elsewhere",
                                           "differences of every kind", "differences, ragged"));

/// Head dims with which the kernel of dk and dv has the scores of half a step at once.
checking::CheckCase wide(checking::CheckCase test, std::int64_t dim_qk, std::int64_t dim_v) {
  test.problem.dim_qk = dim_qk;
  test.problem.dim_v = dim_v;
  return test;
}

class WideFusedHopperKernels : public ::testing::TestWithParam<const char*> {};

TEST_P(WideFusedHopperKernels, AreRight) {
  checking::CheckCase test = case_of(GetParam());
  if (test.problem.dim_qk <= 128) test = wide(std::move(test), 192, 128);
  ASSERT_TRUE(hopper_fused_objections(test.problem, hopper_fused_shape(test.problem)).empty());
  test::expect_right(check_of(test, {}, {}, fused_shape));
}
INSTANTIATE_TEST_SUITE_P(Cases, WideFusedHopperKernels,
                         ::testing::Values("192 and 128", "160 and 96 f16", "192 and 72, unaligned rows",
                                           "causal with offsets", "documents", "mask by the score",
                                           "a learned sink, dropout and the largest score", "ragged, many sequences",
                                           "ragged keys with dropout", "differences of every kind"));

/// Heads that share a KV head take turns; some CTAs walk down and some up.
HopperShape turning_shape(const AttentionProblem& problem, Direction direction) {
  HopperShape shape = fused_shape(problem, direction);
  if (direction == Direction::kBackward) shape.turn_ctas = 2;
  return shape;
}

class TurningHopperKernels : public ::testing::TestWithParam<const char*> {};

TEST_P(TurningHopperKernels, AreRight) { test::expect_right(check_of(case_of(GetParam()), {}, {}, turning_shape)); }
INSTANTIATE_TEST_SUITE_P(Cases, TurningHopperKernels,
                         ::testing::Values("plain f16", "causal with offsets", "global keys and a window",
                                           "nothing kept", "documents", "dropout by keys", "ragged",
                                           "ragged keys with dropout"));

/// In the orders that nobody has measured yet.
template <DqOrder kOrder>
HopperShape ordered_shape(const AttentionProblem& problem, Direction direction) {
  HopperShape shape = fused_shape(problem, direction);
  shape.dq_order = kOrder;
  return shape;
}

/// Two CTAs take all tiles of keys.
HopperShape persistent_shape(const AttentionProblem& problem, Direction direction) {
  return direction == Direction::kForward ? hopper_shape(problem, direction) : persistent_fused_shape(problem, 2);
}

class PersistentFusedHopperKernels : public ::testing::TestWithParam<const char*> {};

TEST_P(PersistentFusedHopperKernels, AreRight) {
  test::expect_right(check_of(case_of(GetParam()), {}, {}, persistent_shape));
}
INSTANTIATE_TEST_SUITE_P(Cases, PersistentFusedHopperKernels,
                         ::testing::Values("plain f16", "causal with offsets", "global keys and a window",
                                           "nothing kept", "documents", "mask by the score", "unaligned rows",
                                           "dropout by keys", "a learned sink, dropout and the largest score", "ragged",
                                           "ragged, many sequences", "ragged keys with dropout"));

class HopperKernelsOfPoison : public ::testing::TestWithParam<const char*> {};

TEST_P(HopperKernelsOfPoison, AreRight) {
  const checking::CheckCase test = case_of(GetParam());
  test::expect_right(test::check_emulated(test, test::poisoned_inputs(test.problem, 0), hopper_shape));
}
TEST_P(HopperKernelsOfPoison, AreRightWhereDqIsAddedUp) {
  const checking::CheckCase test = case_of(GetParam());
  test::expect_right(test::check_emulated(test, test::poisoned_inputs(test.problem, 0), fused_shape));
}
TEST_P(HopperKernelsOfPoison, AreRightWhereCtasTakeTilesOfKeys) {
  const checking::CheckCase test = case_of(GetParam());
  test::expect_right(test::check_emulated(test, test::poisoned_inputs(test.problem, 0), persistent_shape));
}
INSTANTIATE_TEST_SUITE_P(Cases, HopperKernelsOfPoison, ::testing::Values("causal", "documents", "infinite values"));

/// Rings of tiles go round more than once, and rows of blocks end in tiles that are cut off.
checking::CheckCase many_tiles(const char* name) { return test::with_lengths(case_of(name), 450, 700); }

TEST(HopperKernelRings, AreRightOverManyTiles) {
  for (const char* const name : {"plain", "causal", "documents"}) {
    SCOPED_TRACE(name);
    test::expect_right(check_of(many_tiles(name)));
  }
}
TEST(HopperKernelRings, AreRightOverManyTilesWhereDqIsAddedUp) {
  for (const char* const name : {"plain", "causal", "documents"}) {
    SCOPED_TRACE(name);
    test::expect_right(check_of(many_tiles(name), {}, {}, fused_shape));
  }
}

TEST(HopperKernelRings, AreRightOverManyTilesWhereCtasTakeTilesOfKeys) {
  for (const char* const name : {"plain", "causal", "documents"}) {
    SCOPED_TRACE(name);
    test::expect_right(check_of(many_tiles(name), {}, {}, persistent_shape));
    test::expect_right(check_of(wide(many_tiles(name), 128, 128), {}, {}, persistent_shape));
  }
}

TEST(HopperKernelRings, AreRightOverManyTilesOfWideHeads) {
  test::expect_right(check_of(wide(many_tiles("plain"), 192, 128), {}, {}, fused_shape));
  test::expect_right(check_of(wide(many_tiles("documents"), 136, 64), {}, {}, fused_shape));
  test::expect_right(check_of(wide(many_tiles("causal"), 192, 64), {}, {}, turning_shape));
}

TEST(HopperKernelRings, AreRightOverManyTilesWhereHeadsTakeTurns) {
  for (const char* const name : {"plain", "causal", "documents"}) {
    SCOPED_TRACE(name);
    test::expect_right(check_of(many_tiles(name), {}, {}, turning_shape));
  }
}

TEST(HopperKernelRings, AreRightInWhateverOrderDqIsAddedUp) {
  for (const char* const name : {"causal", "documents"}) {
    SCOPED_TRACE(name);
    test::expect_right(check_of(many_tiles(name), {}, {}, ordered_shape<DqOrder::kLateFence>));
    test::expect_right(check_of(many_tiles(name), {}, {}, ordered_shape<DqOrder::kEarlyAdditions>));
  }
}

/// The checks above would see it: each of these makes them fail.
TEST(HopperKernelFaults, AreSeen) {
  checking::CheckCase plain = many_tiles("plain");
  const auto backward = [&](const char* text, const char* instead) { return check_of(plain, {}, {text, instead}); };
  EXPECT_FALSE(backward("row_terms(call, b, h, first)", "row_terms(call, b, h, 0)").passed())
      << "terms of another step";
  const auto fused = [&](const char* text, const char* instead) {
    return check_of(plain, {}, {text, instead}, fused_shape);
  };
  EXPECT_FALSE(fused("if (has_box) add_dq(box);", "if (has_box) add_dq(last_box);").passed()) << "rows of another step";
  EXPECT_FALSE(fused("block_barrier();\n    if (kDqOrder", "if (kDqOrder").passed())
      << "gradients that the other group has yet to write";
  EXPECT_FALSE(check_of(plain, {}, {"wgmma_wait<2>();", ""}, ordered_shape<DqOrder::kEarlyAdditions>).passed())
      << "a product that is not there yet";
  EXPECT_FALSE(fused("kFused && word <", "false && word <").passed()) << "sums that are not begun";
  EXPECT_FALSE(check_of(plain, {}, {"h = end_h - call.group;", "h = end_h - 1;"}, turning_shape).passed())
      << "heads without a turn";
  plain.problem.backward = false;
  const auto forward = [&](const char* text, const char* instead) { return check_of(plain, {text, instead}); };
  EXPECT_FALSE(forward("wgmma_wait<1>();", "wgmma_wait<2>();").passed()) << "scores that are not there yet";
  EXPECT_FALSE(forward("if (rescale) rescale_output(rows, factors);", "").passed()) << "sums by another row max";
}

TEST(HopperKernelFaults, OfWideHeadsAreSeen) {
  const checking::CheckCase plain = wide(many_tiles("plain"), 192, 128);
  const auto fault = [&](const char* text, const char* instead) {
    return check_of(plain, {}, {text, instead}, fused_shape);
  };
  EXPECT_FALSE(fault("if (has_box) add_dq();", "if (has_box) box = first_box(), add_dq();").passed())
      << "rows of another step";
  EXPECT_FALSE(fault("issue_dq(next_tile(next_tile(own_tile)));\n    scheduler_pass();\n    wait_for_dq",
                     "issue_dq(own_tile);\n    scheduler_pass();\n    wait_for_dq")
                   .passed())
      << "gradients of a step that is under way";
  EXPECT_FALSE(fault("group_number() * kHalfBlock * 2", "0").passed()) << "the other group's columns";
}

TEST(HopperKernelFaults, OfCtasThatTakeTilesOfKeysAreSeen) {
  const checking::CheckCase causal = many_tiles("causal");
  const auto fault = [&](const char* text, const char* instead) {
    return check_of(causal, {}, {text, instead}, persistent_shape);
  };
  EXPECT_FALSE(fault("if (kPersistent && blockIdx.x == 0", "if (false && blockIdx.x == 0").passed())
      << "another call's count";
  EXPECT_FALSE(fault("full = steps.walk.full;", "full = steps.walk.some;").passed()) << "tiles that are not full";
}

TEST(HopperKernelFaultsDeathTest, OfCtasThatTakeTilesOfKeysAreSeen) {
  const checking::CheckCase plain = many_tiles("plain");
  const auto fault = [&](const char* text, const char* instead) {
    check_of(plain, {}, {text, instead}, persistent_shape);
  };
  EXPECT_DEATH(fault("consumer_release(tiles.own_empty);", ""), "threads wait for each other forever");
  EXPECT_DEATH(fault("consumer_release(tiles.empty + ring.stage);\n      ring.advance();", "ring.advance();"),
               "threads wait for each other forever");
}

TEST(HopperKernelFaults, OfPackedTilesAreSeen) {
  const checking::CheckCase test = case_of("ragged, many sequences");
  const auto packed = [&](const char* text, const char* instead) {
    return check_of(test, {text, instead}, {text, instead}, fused_shape);
  };
  EXPECT_FALSE(packed(" / rows + b;", " / rows;").passed()) << "sequences that begin in one tile";
  EXPECT_FALSE(packed("begun >> 1) * step", "begun >> 1) * 0").passed()) << "another sequence's tile";
  const char* const ends = "if (kv + kKeys > keys) return kPartialTile;";
  EXPECT_FALSE(check_of(case_of("ragged keys with dropout"), {ends, ""}, {}).passed()) << "keys of the next sequence";
}

TEST(HopperKernelFaultsDeathTest, AreSeen) {
  checking::CheckCase plain = many_tiles("plain");
  plain.problem.backward = false;
  const auto forward = [&](const char* text, const char* instead) { check_of(plain, {text, instead}); };
  EXPECT_DEATH(forward("consumer_release(tiles.v_empty + last.stage);", ""), "threads wait for each other forever");
  EXPECT_DEATH(forward("mbarrier_wait(tiles.v_full + last.stage, last.phase);\n    wgmma_fence();\n    issue_wgmma_ab",
                       "wgmma_fence();\n    issue_wgmma_ab"),
               "more arrivals than a barrier has");
  EXPECT_DEATH(forward("arrive_and_expect(full, tile_bytes(kTileRows, kDim));", "arrive(full);"),
               "a copy that its barrier does not expect");
  EXPECT_DEATH(forward("  wgmma_fence();\n  issue_wgmma_abt", "  issue_wgmma_abt"), "a product before wgmma_fence");
}

}  // namespace
}  // namespace scoremod::backend::kernels
