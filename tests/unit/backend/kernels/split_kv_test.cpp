// The decode kernels on a host, thread by thread, against the float64 oracle.

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "backend/kernels/split_kv/family.hpp"
#include "compiler/pipeline.hpp"
#include "support/attention_kernels_cases.hpp"
#include "support/check_report.hpp"
#include "support/emulated_attention.hpp"
#include "support/test_seed.hpp"
#include "support/tiled_call.hpp"

namespace scoremod::backend::kernels {
namespace {

using Fault = test::EmulatedLaunches::Fault;

DeviceProperties device(std::int64_t multiprocessors = 6) {
  DeviceProperties device;
  device.compute_capability = 90;
  device.multiprocessors = multiprocessors;
  device.shared_memory_per_block = 232448;
  return device;
}

AttentionProblem decoding(std::int64_t batch, std::int64_t seq_kv) {
  AttentionProblem problem;
  problem.batch = batch;
  problem.heads_q = 32;
  problem.heads_kv = 8;
  problem.seq_q = 1;
  problem.seq_kv = seq_kv;
  problem.dim_qk = problem.dim_v = 128;
  problem.dtype = DType::kBF16;
  problem.program = Program::parse("value = score");
  return problem;
}

checking::CheckCase case_of(const std::string& name) {
  std::vector<checking::CheckCase> cases = test::split_kv_cases(true);
  return std::move(
      cases.at(static_cast<std::size_t>(std::ranges::find(cases, name, &checking::CheckCase::name) - cases.begin())));
}

/// Rows that are not finite are not recomputed, so that faults show.
const Fault kOnce{"    forward_row(p, scratch, own.b, of.h, of.q, crew);\n", ""};

/// In the shape with this many rows.
SplitKvShape shape_of(const AttentionProblem& problem, int rows) {
  for (const SplitKvShape& shape : split_kv_shapes(problem, device()))
    if (shape.queries == rows) return shape;
  return {};
}

CheckReport check_of(const checking::CheckCase& test, const ProblemInputs& inputs, const SplitKvShape& shape,
                     const test::EmulatedFaults& faults = {}) {
  return test::check_emulated(
      test, inputs, [&](const AttentionProblem&, Direction) { return shape; }, faults);
}

struct ShapedCase {
  const char* name;
  int rows;
};
class SplitKv : public ::testing::TestWithParam<ShapedCase> {};

TEST_P(SplitKv, AreRight) {
  const checking::CheckCase test = case_of(GetParam().name);
  SCOPED_TRACE(test.name);
  test::expect_right(
      check_of(test, random_inputs(test.problem), shape_of(test.problem, GetParam().rows), {.of_both = kOnce}));
}
/// Some have several tiles of rows, and some a part of one.
const ShapedCase kShapedCases[] = {
    {"one query of four heads", 16},
    {"three queries of five heads", 16},
    {"sixteen queries of four heads", 32},
    {"lengths", 16},
    {"decode, documents", 64},
    {"decode, mask by head", 32},
    {"decode, wide heads", 32},
    {"decode, unaligned", 64},
    {"decode, sink, dropout and largest score", 32},
    {"decode, dropout with odd offsets, scores as they are", 16},
    {"decode, pages", 16},
    {"decode, pages by heads", 32},
    {"decode, ragged", 16},
    {"decode, pages", 16},
    {"decode, large pages", 16},
    {"decode, FP8 keys", 16},
    {"decode, FP8 keys under f16", 32},
    {"decode, FP8 keys of 48 dims", 64},
    {"decode, unaligned FP8 keys", 16},
    {"decode, narrow FP8 keys and wide values", 64},
    {"decode, FP8 pages", 16},
    {"decode, ragged FP8 keys", 32},
    {"decode, scales of FP8 rows", 32},
    {"decode, scales of rows of FP8 pages", 16},
    {"decode, scales of blocks of large FP8 pages", 64},
    {"decode, scales of ragged FP8 values", 16},
    {"decode, narrow keys and wide values", 64},
};
INSTANTIATE_TEST_SUITE_P(Cases, SplitKv, ::testing::ValuesIn(kShapedCases));

TEST(SplitKv, LookAtAMaskOnceThatIsTheSameForAllQueries) {
  const auto looks_at_all = [](const char* name) {
    const AttentionProblem problem = case_of(name).problem;
    const std::string text =
        render_all(attention_source(compiler::compile(problem), Direction::kForward, shape_of(problem, 16)));
    return text.find("kMaskVariesWithQuery = true") != std::string::npos;
  };
  EXPECT_FALSE(looks_at_all("lengths"));
  EXPECT_FALSE(looks_at_all("decode, mask by head"));
  EXPECT_TRUE(looks_at_all("decode, documents"));
}

/// Without parts that are merged.
TEST(SplitKvInOneShare, AreRight) {
  const checking::CheckCase test = case_of("decode, sink, dropout and largest score");
  SplitKvShape shape = shape_of(test.problem, 32);
  shape.splits = 1;
  test::expect_right(check_of(test, random_inputs(test.problem), shape, {.of_both = kOnce}));
  test::expect_right(check_of(test, test::poisoned_inputs(test.problem, 0), shape));
}

TEST(SplitKvWithInfinitiesAndNan, AreRight) {
  for (const auto& [name, rows] :
       {ShapedCase{"decode, one key", 32}, ShapedCase{"decode, mask by the score", 64},
        ShapedCase{"decode, FP8 keys under f16", 16}, ShapedCase{"decode, scales of FP8 rows", 16}}) {
    const checking::CheckCase test = case_of(name);
    SCOPED_TRACE(test.name);
    test::expect_right(check_of(test, test::poisoned_inputs(test.problem, 0), shape_of(test.problem, rows)));
  }
}

struct PlantedFault {
  const char* name;
  const char* test;
  Fault fault;
};
class SplitKvFaults : public ::testing::TestWithParam<PlantedFault> {};

/// The checks above would see it.
TEST_P(SplitKvFaults, AreSeen) {
  const checking::CheckCase test = case_of(GetParam().test);
  const ProblemInputs inputs = random_inputs(test.problem);
  SplitKvShape shape = shape_of(test.problem, 16);
  shape.warps = shape.teams = 2;
  shape.stages = 2;  // fewer than a team has tiles
  shape.splits = 2;
  EXPECT_FALSE(check_of(test, inputs, shape, {.forward = GetParam().fault, .of_both = kOnce}).passed());
}
const PlantedFault kPlantedFaults[] = {
    {"FullWrongly", "decode, documents", {"full = some & ~masked", "full = some"}},
    {"ForTheFirstQueryAlone", "decode, documents", {"kMaskVariesWithQuery ? last_q : first_q;\n", "first_q;\n"}},
    {"EmptyWrongly", "decode, documents", {"some &= kept;", "some &= kept & ~masked;"}},
    {"FullByTheFirstKey",
     "decode, pages",
     {"all_kept &= mask_keeps(p, b, head, q, last_key)", "all_kept &= some_kept"}},
    {"EmptyByTheLastKey",
     "decode, pages",
     {"some_kept |= mask_keeps(p, b, head, q, first_key)", "some_kept = all_kept"}},
    {"NotWaitedFor",
     "one query of four heads",
     {"wait_for_copies_but<kStages - 2>();\n    team", "wait_for_copies_but<kStages - 1>();\n    team"}},
    {"OverwrittenEarly", "one query of four heads", {"fetch(stage == 0 ? kStages - 1 : stage - 1)", "fetch(stage)"}},
    {"APartLeftOut", "one query of four heads", {"rows[i].add(from[i]", "if (part > 0) rows[i].add(from[i]"}},
    {"APartNotLookedAt",
     "decode, sink, dropout and largest score",
     {"rows[i].look_at(from[i]", "if (part > 0) rows[i].look_at(from[i]"}},
    {"MergedWhoeverIsLast", "one query of four heads", {"last = count == shares", "last = own.split == 0"}},
    {"WhatWasThereIsCounted",
     "one query of four heads",
     {"seen >> kCountBits == call.number", "seen >> kCountBits != 0"}},
    {"ATeamLeftOut", "one query of four heads", {"merge<kTeams>(scratch", "merge<1>(scratch"}},
    {"AnotherHeadsRow",
     "four queries of four heads",
     {"store_merged(p, rows[i], own.b, of.h, of.q)", "store_merged(p, rows[i], own.b, of.h ^ 1, of.q)"}},
    {"AnotherHeadsDropout",
     "decode, sink, dropout and largest score",
     {"dropout.four(of.h, of.q", "dropout.four(h, of.q"}},
    {"PagesSwapped",
     "decode, pages",
     {"pages[position / kBlockRows * page_step]", "pages[(position / kBlockRows ^ 1) * page_step]"}},
    {"ARowOfAnotherPage", "decode, pages", {"from_lane(pages, (row + i) % 32)", "from_lane(pages, row % 32)"}},
    {"ATileOfAnotherPage", "decode, large pages", {": from.at(first)) + row", ": from.at(0)) + row"}},
    {"LseByHeads", "decode, ragged", {"+ q) * call.heads_q + h", "+ q) + h * call.seq_q"}},
    {"BandFromAnotherRow", "a window at a position", {"first_q + call.lowest", "first_q + call.lowest + 64"}},
    {"ScalesOfAnotherColumn", "decode, scales of FP8 rows", {"factors + threadIdx.x % 4 * 2", "factors"}},
    {"ValuesWithoutScales",
     "decode, scales of FP8 rows",
     {"if (kRowScales) multiply_columns(scores, tiles.value_scales(stage));", ""}},
    {"ScalesOfAPagesFirstRow", "decode, scales of rows of FP8 pages", {"row = kv % kBlockRows;", "row = 0;"}},
    {"ScalesOfAnotherBlock", "decode, scales of blocks of large FP8 pages", {"row : row / 32", "row : row / 64"}},
    {"ScalesOfAnotherSequence",
     "decode, scales of ragged FP8 values",
     {"row = tokens_of(tensor, b).first + kv", "row = kv"}},
};
INSTANTIATE_TEST_SUITE_P(Faults, SplitKvFaults, ::testing::ValuesIn(kPlantedFaults),
                         [](const auto& fault) { return std::string(fault.param.name); });

/// A graph repeats a call with its arguments, in a workspace with the last run's contents.
TEST(SplitKvInShares, AreMergedEachTimeThatAGraphRepeatsACall) {
  const checking::CheckCase test = case_of("decode, sink, dropout and largest score");
  const std::vector inputs{random_inputs(test.problem)};
  SplitKvShape shape = shape_of(test.problem, 32);
  shape.splits = 3;
  const std::vector<std::uint64_t> once = test::emulated_forward_bits(test, inputs, shape, 1);
  EXPECT_EQ(test::emulated_forward_bits(test, inputs, shape, 2, 3), once);
  EXPECT_NE(test::emulated_forward_bits(test, inputs, shape, 1, 2, {"last ? 0 :", "false ? 0 :"}), once);
}

/// By warpgroups, with fewer stages than a team has tiles where there is a single split.
SplitKvShape hopper_shape_of(const AttentionProblem& problem, int splits) {
  SplitKvShape shape = hopper_split_kv_shapes(problem, device().multiprocessors).front();
  shape.stages = 2;
  shape.splits = splits;
  return shape;
}

struct SplitCase {
  const char* name;
  int splits;
};
class HopperSplitKv : public ::testing::TestWithParam<SplitCase> {};

TEST_P(HopperSplitKv, AreRight) {
  const checking::CheckCase test = case_of(GetParam().name);
  SCOPED_TRACE(test.name);
  const SplitKvShape shape = hopper_shape_of(test.problem, GetParam().splits);
  test::expect_right(check_of(test, random_inputs(test.problem), shape, {.of_both = kOnce}));
}
/// Rows fill a part of a tile, a tile or several; some lie where no box can be copied from.
const SplitCase kSplitCases[] = {
    {"one query of a head", 1},
    {"one query of four heads", 1},
    {"one query of four heads", 3},
    {"three queries of five heads", 1},
    {"sixteen queries of four heads", 1},
    {"sixteen queries of sixteen heads", 1},
    {"sixty-four queries", 2},
    {"a window at a position", 1},
    {"lengths", 1},
    {"lengths", 3},
    {"decode, documents", 1},
    {"decode, mask by head", 2},
    {"global keys and a window at a position", 1},
    {"decode, mask by the score", 1},
    {"decode without a key", 2},
    {"decode, nothing kept", 1},
    {"decode, one key", 2},
    {"decode, wide heads", 1},
    {"decode, unaligned", 1},
    {"decode, bias", 1},
    {"decode, sink, dropout and largest score", 1},
    {"decode, sink, dropout and largest score", 4},
    {"decode, dropout with odd offsets, scores as they are", 1},
    {"decode, ragged", 1},
    {"decode, ragged", 2},
};
INSTANTIATE_TEST_SUITE_P(Cases, HopperSplitKv, ::testing::ValuesIn(kSplitCases));

TEST(HopperSplitKvWithInfinitiesAndNan, AreRight) {
  for (const auto& [name, splits] : {SplitCase{"decode, one key", 1}, {"decode, mask by the score", 2}}) {
    const checking::CheckCase test = case_of(name);
    SCOPED_TRACE(test.name);
    test::expect_right(check_of(test, test::poisoned_inputs(test.problem, 0), hopper_shape_of(test.problem, splits)));
  }
}

/// In whatever order warps and copies run, rows that are summed again among them.
TEST(HopperSplitKv, GiveTheSameBitsEachTime) {
  const checking::CheckCase test = case_of("decode, sink, dropout and largest score");
  const std::vector inputs{random_inputs(test.problem), test::poisoned_inputs(test.problem, 0)};
  for (const int splits : {1, 3}) {
    const SplitKvShape shape = hopper_shape_of(test.problem, splits);
    EXPECT_EQ(test::emulated_forward_bits(test, inputs, shape, 1), test::emulated_forward_bits(test, inputs, shape, 2));
  }
}

class HopperSplitKvFaults : public ::testing::TestWithParam<PlantedFault> {};

/// The checks above would see it.
TEST_P(HopperSplitKvFaults, AreSeen) {
  const checking::CheckCase test = case_of(GetParam().test);
  EXPECT_FALSE(check_of(test, random_inputs(test.problem), hopper_shape_of(test.problem, 1),
                        {.forward = GetParam().fault, .of_both = kOnce})
                   .passed());
}
const PlantedFault kHopperFaults[] = {
    {"FullWrongly",
     "lengths",
     {"online_softmax_step(p, scores, rows, found % 2 != 0", "online_softmax_step(p, scores, rows, false"}},
    {"AnotherTilesKeys", "lengths", {"first_row, found / 2 * kKeys)", "first_row, 0)"}},
    {"OneTeamsKeysTwice", "one query of four heads", {"own.split * kTeams + team", "own.split * kTeams"}},
    {"ScoresNotThereYet",
     "one query of four heads",
     {"wgmma_wait<0>();\n    fence_operand(scores", "wgmma_wait<1>();\n    fence_operand(scores"}},
    {"RowsWithoutWeights",
     "sixteen queries of four heads",
     {"first_row < rows_of_head(p.call)", "first_row < rows_of_head(p.call) - 16"}},
    {"WordsInPlace", "one query of four heads", {"(dim % 64 / 8) ^ (row % 8)", "dim % 64 / 8"}},
};
INSTANTIATE_TEST_SUITE_P(Faults, HopperSplitKvFaults, ::testing::ValuesIn(kHopperFaults),
                         [](const auto& fault) { return std::string(fault.param.name); });

TEST(HopperSplitKvFaultsDeathTest, AreSeen) {
  const auto run = [](const char* text, const char* instead) {
    const checking::CheckCase test = case_of("one query of four heads");
    check_of(test, random_inputs(test.problem), hopper_shape_of(test.problem, 1), {.forward = {text, instead}});
  };
  constexpr const char* kForever = "threads wait for each other forever";
  EXPECT_DEATH(run("consumer_release(tiles.k_empty + ring.stage);", ""), kForever);
  EXPECT_DEATH(run("consumer_release(tiles.v_empty + ring.stage);", ""), kForever);
  EXPECT_DEATH(run("  arrive(tiles.k_full + ring.stage);\n", ""), kForever);
  EXPECT_DEATH(run("arrive_at(kBegun, kThreads + kProducers);", ""), kForever);
  EXPECT_DEATH(run("    mbarrier_wait(tiles.v_empty + ring.stage, ring.phase ^ 1);\n", ""), "a copy|barrier");
  EXPECT_DEATH(run("    mbarrier_wait(tiles.v_full + ring.stage, ring.phase);\n", ""), "barrier|forever");
  EXPECT_DEATH(run("  wait_for_copies();\n  fence_proxy_async();\n  meet(", "  meet("),
               "a thread ends before its copies");
}

TEST(HopperSplitKvShapes, FillSharedMemory) {
  AttentionProblem problem = decoding(16, 8192);
  for (const auto& [dim_qk, dim_v] : {std::pair{8, 8}, {64, 64}, {128, 128}, {192, 128}, {128, 256}, {256, 256}}) {
    problem.dim_qk = dim_qk;
    problem.dim_v = dim_v;
    for (const SplitKvShape& shape : hopper_split_kv_shapes(problem, 132)) {
      SCOPED_TRACE(testing::Message() << dim_qk << " and " << dim_v);
      EXPECT_GT(shape.stages, 2);
      const std::size_t bytes = split_kv_shared_bytes(shape, dim_qk, dim_v);
      EXPECT_LE(bytes, 232448U);
      EXPECT_GT(bytes, 190000U);
    }
  }
}

TEST(HopperSplitKvShapes, HaveRoomForATilesRowsAlone) {
  AttentionProblem problem = decoding(16, 8192);
  problem.seq_q = 16;
  EXPECT_TRUE(hopper_split_kv_objections(problem).empty());
  problem.k.strides = Strides{0, 128, std::int64_t{8} * 128, 1};
  EXPECT_EQ(hopper_split_kv_objections(problem).size(), 1U) << "no map has batches that are the same memory";
  problem.seq_q = 17;
  EXPECT_EQ(hopper_split_kv_objections(problem).size(), 2U) << "68 rows";
}

TEST(SplitKvShapes, PartitionKeysWhereThereAreFewHeads) {
  const auto splits = [](std::int64_t batch, std::int64_t seq_kv) {
    const std::vector<SplitKvShape> shapes = split_kv_shapes(decoding(batch, seq_kv), device(132));
    EXPECT_EQ(shapes[0].blocks, 1);
    EXPECT_EQ(shapes[1].splits, 1);
    EXPECT_EQ(shapes[0].queries, shapes[1].queries);
    return shapes[0].splits;
  };
  EXPECT_EQ(splits(4, 32768), 4);  // 128 blocks for 132 places
  EXPECT_GE(splits(1, 32768), 16);
  EXPECT_EQ(splits(1, 100), 2);     // not more than there are keys for
  EXPECT_EQ(splits(512, 8192), 2);  // the heads alone fill the device
}

/// The number of splits with the least time, and of those the fewest, by trying each. The time is that of all rounds of
/// CTAs: each takes its chunks of 64 keys, and 2 for all else.
std::int64_t splits_by_scan(const SplitKvShape& shape, const AttentionProblem& problem, std::int64_t multiprocessors) {
  const auto up = [](std::int64_t a, std::int64_t b) { return (a + b - 1) / b; };
  const std::int64_t heads = problem.batch * problem.heads_kv * split_kv_row_tiles(shape, problem);
  const std::int64_t chunks = up(problem.seq_kv, 64), at_once = multiprocessors * shape.blocks;
  std::int64_t best = 0, least = 0;
  for (std::int64_t splits = 2; splits == 2 || splits <= std::min(up(chunks, shape.teams), at_once); ++splits) {
    const std::int64_t time = up(heads * splits, at_once) * (up(chunks, splits * shape.teams) + 2);
    if (best == 0 || time < least) best = splits, least = time;
  }
  return best;
}

TEST(SplitKvShapes, HaveTheSplitsOfAScan) {
  std::mt19937_64 random(test::test_seed());
  const auto draw = [&](std::int64_t most) {
    return 1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most));
  };
  for (int i = 0; i < 300; ++i) {
    AttentionProblem problem = decoding(draw(i % 2 == 0 ? 4 : 600), draw(i % 3 == 0 ? 2000 : 200'000));
    problem.heads_kv = std::int64_t{1} << draw(5);
    const std::int64_t multiprocessors = draw(200);
    for (const SplitKvShape& shape : split_kv_shapes(problem, device(multiprocessors))) {
      if (shape.splits == 1) continue;
      EXPECT_EQ(shape.splits, splits_by_scan(shape, problem, multiprocessors))
          << problem.batch << " x " << problem.heads_kv << " heads, " << problem.seq_kv << " keys, " << multiprocessors
          << " multiprocessors, " << shape.queries << " rows";
    }
  }
}

TEST(SplitKvShapes, DifferInNothingThatIsCompiledWhereOnlyLengthsDo) {
  SplitKvShape shape = split_kv_shapes(decoding(16, 8192), device()).front(),
               other = split_kv_shapes(decoding(1, 100), device()).front();
  const std::string text =
      render_all(attention_source(compiler::compile(decoding(16, 8192)), Direction::kForward, shape));
  EXPECT_EQ(text, render_all(attention_source(compiler::compile(decoding(1, 100)), Direction::kForward, other)));
}

TEST(SplitKvShapes, FitDevicesOfLittleSharedMemory) {
  DeviceProperties small = device();
  small.shared_memory_per_block = 101376;
  for (const std::int64_t dim : {8, 64, 128, 256}) {
    AttentionProblem problem = decoding(2, 1000);
    problem.dim_qk = problem.dim_v = dim;
    for (const SplitKvShape& shape : split_kv_shapes(problem, small)) {
      EXPECT_GT(shape.stages, 1);
      EXPECT_LE(split_kv_shared_bytes(shape, dim, dim) * static_cast<std::size_t>(shape.blocks), 101376U)
          << "dim " << dim << ", " << shape.queries << " rows";
    }
  }
}

}  // namespace
}  // namespace scoremod::backend::kernels
