// The persistent decode kernel, which shares out keys by the lengths that there are, on a host, thread by thread:
// against the float64 oracle, for lengths that differ widely.

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "backend/kernels/split_kv/family.hpp"
#include "base/concat.hpp"
#include "compiler/pipeline.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"
#include "support/attention_kernels_cases.hpp"
#include "support/check_report.hpp"
#include "support/emulated_attention.hpp"
#include "support/paged_decode_cases.hpp"
#include "support/test_seed.hpp"

namespace scoremod::backend::kernels {
namespace {

using Fault = test::EmulatedLaunches::Fault;
using test::inputs_of, test::operand_of, test::paged_case, test::with_ragged_queries;

/// Rows that are not finite are not recomputed, so that faults show.
const Fault kOnce{test::kRowsAgain, ""};

/// With room for this many rows, and so many CTAs.
SplitKvShape shape_of(const AttentionProblem& problem, int rows, int ctas) {
  DeviceProperties device;
  device.compute_capability = 90;
  device.multiprocessors = 6;
  device.shared_memory_per_block = 232448;
  for (SplitKvShape shape : persistent_split_kv_shapes(problem, device)) {
    if (shape.queries != rows) continue;
    shape.persistent_ctas = ctas;
    return shape;
  }
  ADD_FAILURE() << "no shape of " << rows << " rows";
  return {};
}

checking::CheckCase case_of(const std::string& name) {
  std::vector<checking::CheckCase> cases = test::split_kv_cases(true);
  return std::move(
      cases.at(static_cast<std::size_t>(std::ranges::find(cases, name, &checking::CheckCase::name) - cases.begin())));
}

CheckReport check_of(const checking::CheckCase& test, const ProblemInputs& inputs, const SplitKvShape& shape,
                     const test::EmulatedFaults& faults = {.of_both = kOnce}) {
  return test::check_emulated(
      test, inputs, [&](const AttentionProblem&, Direction) { return shape; }, faults);
}

struct ShapedCase {
  const char* name;
  int rows, ctas;
};
class PersistentSplitKv : public ::testing::TestWithParam<ShapedCase> {};

TEST_P(PersistentSplitKv, AreRight) {
  const checking::CheckCase test = case_of(GetParam().name);
  SCOPED_TRACE(test.name);
  test::expect_right(
      check_of(test, random_inputs(test.problem), shape_of(test.problem, GetParam().rows, GetParam().ctas)));
}
/// CTAs have several tiles each, a tile, or a part of one; teams are of one warp, or of two.
const ShapedCase kShapedCases[] = {
    {"decode, pages", 16, 1},
    {"decode, pages", 64, 3},
    {"decode, pages by heads", 32, 2},
    {"decode, large pages", 16, 7},
    {"decode, large pages", 32, 40},
    {"decode, ragged", 16, 2},
    {"decode, ragged", 64, 5},
    {"decode, FP8 pages", 16, 3},
    {"decode, large FP8 pages", 64, 4},
    {"decode, ragged FP8 keys", 32, 2},
    {"decode, scales of rows of FP8 pages", 16, 3},
    {"decode, scales of blocks of large FP8 pages", 64, 4},
    {"decode, scales of ragged FP8 values", 32, 2},
};
INSTANTIATE_TEST_SUITE_P(Cases, PersistentSplitKv, ::testing::ValuesIn(kShapedCases));

/// Long beside short, empty ones among them, in as many CTAs as share out the long one, and in fewer.
TEST(PersistentSplitKvByLengths, AreRight) {
  const checking::CheckCase test = paged_case({5, 4, 2, 1, 3000, 32, 16});
  for (const int ctas : {1, 3, 11}) {
    SCOPED_TRACE(ctas);
    test::expect_right(check_of(test, inputs_of(test, {0, 17, 2990, 1, 64}), shape_of(test.problem, 16, ctas)));
  }
}
TEST(PersistentSplitKvByLengths, AreRightForManyShortSequences) {
  const checking::CheckCase test = paged_case({300, 2, 1, 1, 40, 32, 1});
  std::vector<std::int32_t> lengths(300);
  for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<std::int32_t>(i * 7 % 41);
  test::expect_right(check_of(test, inputs_of(test, lengths), shape_of(test.problem, 16, 4)));
}
TEST(PersistentSplitKvByLengths, AreRightForRaggedQueriesOverPages) {
  const checking::CheckCase test = with_ragged_queries(paged_case({7, 8, 2, 9, 500, 32, 16}));
  for (const std::uint64_t seed : {1, 2})
    test::expect_right(
        check_of(test, inputs_of(test, {500, 0, 31, 470, 64, 1, 0}, seed), shape_of(test.problem, 32, 4)));
}
/// Below diagonals that end at each sequence's last key, or elsewhere, of queries that share a tile. The first and the
/// last of them tell of all.
TEST(PersistentSplitKvBelowDiagonals, AreRight) {
  const checking::CheckCase test =
      paged_case({5, 8, 2, 13, 500, 32, 16}, "operand at: i32 [b]\nvalue = score * 0.5\nkeep = kv_idx <= q_idx + at");
  ProblemInputs inputs = inputs_of(test, {500, 14, 130, 77, 400});
  const std::vector<std::int32_t> at{487, 1, 117, 60, -5};
  std::memcpy(operand_of(inputs, "at").bytes.data(), at.data(), at.size() * sizeof(std::int32_t));
  for (const int rows : {16, 32, 64}) {
    const SplitKvShape shape = shape_of(test.problem, rows, 4);
    test::expect_right(check_of(test, inputs, shape));
    const Fault first_alone{"? last - first_q : 1", "? last - first_q + 1 : 1"};
    EXPECT_FALSE(check_of(test, inputs, shape, {.forward = first_alone, .of_both = kOnce}).passed());
  }
}
TEST(PersistentSplitKvByLengths, AreRightWithoutAnyKey) {
  const checking::CheckCase test = paged_case({3, 4, 2, 2, 100, 32, 16});
  test::expect_right(check_of(test, inputs_of(test, {0, 0, 0}), shape_of(test.problem, 16, 6)));
}

TEST(PersistentSplitKvWithInfinitiesAndNan, AreRight) {
  for (const auto& [name, rows, ctas] :
       {ShapedCase{"decode, pages", 16, 3}, {"decode, ragged", 64, 2}, {"decode, large pages", 32, 20}}) {
    const checking::CheckCase test = case_of(name);
    SCOPED_TRACE(test.name);
    test::expect_right(check_of(test, test::poisoned_inputs(test.problem, 0), shape_of(test.problem, rows, ctas), {}));
  }
}

/// A sequence's pages lie in any order. Each text takes a host's compiler seconds: few problems, with new seeds each
/// time.
TEST(PersistentSplitKvOfRandomProblems, AreRight) {
  for (std::uint64_t i = 0; i < 5; ++i) {
    const std::uint64_t seed = test::test_seed() + i;
    const test::PagedDecodeCase random = test::random_paged_decode(seed);
    SCOPED_TRACE(concat("problem ", i, " (SCOREMOD_TEST_SEED=", test::test_seed(), ") by ", random.ctas, " CTAs, ",
                        random.rows, " rows\n", to_json(random.test.problem)));
    test::expect_right(check_of(random.test, inputs_of(random.test, random.lengths, seed),
                                shape_of(random.test.problem, random.rows, random.ctas)));
  }
}

/// Device memory is not validated.
TEST(PersistentSplitKvByLengths, AreThoseOfTheNearestLengthThatThereCanBe) {
  const checking::CheckCase test = paged_case({3, 4, 2, 2, 200, 32, 16});
  const SplitKvShape shape = shape_of(test.problem, 16, 3);
  const auto bits = [&](const std::vector<std::int32_t>& lengths) {
    return test::emulated_forward_bits(test, {inputs_of(test, lengths)}, shape, 1);
  };
  EXPECT_EQ(bits({-5, 1 << 30, 70}), bits({0, 200, 70}));
  EXPECT_EQ(bits({INT32_MIN, INT32_MAX, 70}), bits({0, 200, 70}));
}

/// In whatever order CTAs, warps and copies run, and in a workspace with another call's contents.
TEST(PersistentSplitKvByLengths, GiveTheSameBitsEachTime) {
  const checking::CheckCase test = paged_case({5, 4, 2, 3, 700, 32, 16});
  const SplitKvShape shape = shape_of(test.problem, 16, 5);
  const std::vector inputs{inputs_of(test, {700, 3, 0, 64, 129}), inputs_of(test, {1, 650, 80, 0, 0})};
  const auto both = test::emulated_forward_bits(test, inputs, shape, 1);
  EXPECT_EQ(test::emulated_forward_bits(test, inputs, shape, 2), both);
  EXPECT_EQ(test::emulated_forward_bits(test, inputs, shape, 3, 4), both) << "as a graph repeats them";
  auto apart = test::emulated_forward_bits(test, {inputs[0]}, shape, 7);
  const auto second = test::emulated_forward_bits(test, {inputs[1]}, shape, 8);
  apart.insert(apart.end(), second.begin(), second.end());
  EXPECT_EQ(apart, both);
}

struct PlantedFault {
  const char* name;
  Fault fault;
  int rows = 16;
};
class PersistentSplitKvFaults : public ::testing::TestWithParam<PlantedFault> {};

/// Sequences of all kinds, of which one is shared out among CTAs, and others among a CTA's teams.
TEST_P(PersistentSplitKvFaults, AreSeen) {
  const checking::CheckCase test = paged_case({6, 8, 2, 8, 2000, 32, 16});
  const ProblemInputs inputs = inputs_of(test, {300, 0, 1900, 40, 5, 129});
  const SplitKvShape shape = shape_of(test.problem, GetParam().rows, 4);
  test::expect_right(check_of(test, inputs, shape));
  EXPECT_FALSE(check_of(test, inputs, shape, {.forward = GetParam().fault, .of_both = kOnce}).passed());
}
const PlantedFault kPlantedFaults[] = {
    {"SumsOfOneWarp", {"own += sums[warp * 32 + 31];", ";"}},
    {"SharesThatOverlap",
     {"return first + count * part / parts;", "return first + (count * part + parts - 1) / parts - (part > 0);"}},
    {"EmptySequencesNotWritten", {"all.end > all.first ? all.end - all.first : 1", "all.end - all.first"}},
    {"AnotherHeadsChunks", {"{b, kv_head, kv_head * call.group,", "{b, 0, 0 * call.group,"}},
    {"ChunksFromTheFirst", {"return {all.first + begin,", "return {all.first,"}},
    {"ChunksToTheLast", {"all.first + end < all.end ? all.first + end : all.end", "all.end"}},
    {"OnePlaceForBothPartials", {"(cta * kTeams + team) + (goes_on ? 1 : 0)", "(cta * kTeams + team)"}},
    {"OnePlaceForBothPartialsOfACta", {"+ number) + (goes_on ? 1 : 0)", "+ number)"}},
    {"TheLastPartialElsewhere", {"(ends && i == count - 1 ? 1 : 0)", "0"}},
    {"APartLeftOut",
     {"rows[i].add(lists[i].at(there ? part + next : 0, parts.floats), there)",
      "rows[i].add(lists[i].at(there ? part + next : 0, parts.floats), there && part + next > 0)"}},
    {"ATeamsPartLeftOut",
     {"return {parts.of_team(call, first, true), last - first + 1, ends}",
      "return {parts.of_team(call, first, true), last - first, false}"}},
    {"MergedWhoeverIsLast", {"last = count == shares;", "last = seen == 0;"}},
    {"SharedTilesAsTheCtasOwn", {"return tile.first < teams.first || tile.end() > end();", "return false;"}},
    {"NotedByNobody", {"open_tiles[right ? tiles.team : kTeams]", "open_tiles[tiles.team]"}},
    {"NotedTwice", {"(left && tiles.team > 0)", "false"}},
    {"WrittenByEachTeam", {"if (!left && !right) {", "if (true) {"}},
    {"RowsOfOneWarp", {"row += kTeamWarps", "row += 2 * kTeamWarps"}, 64},
    {"AnotherTeamsRing", {"team * kAt.ring_bytes", "(team ^ 1) * kAt.q_tile.bytes"}},
    {"OneTileOfQueries", {"kAt.q + team * kAt.q_tile.bytes", "kAt.q"}},
};
INSTANTIATE_TEST_SUITE_P(Faults, PersistentSplitKvFaults, ::testing::ValuesIn(kPlantedFaults),
                         [](const auto& fault) { return std::string(fault.param.name); });

/// A warp merges rows of tiles with two parts beside some with three.
TEST(PersistentSplitKvTiles, MayHaveOtherCountsOfParts) {
  const checking::CheckCase test = paged_case({3, 4, 1, 4, 512, 32, 16});
  const ProblemInputs inputs = inputs_of(test, {192, 320, 512});  // teams have 128 keys each
  const SplitKvShape shape = shape_of(test.problem, 16, 1);
  test::expect_right(check_of(test, inputs, shape));
  const Fault twice{"rows[i].add(lists[i].at(there ? part + next : 0, parts.floats), there)",
                    "rows[i].add(lists[i].at(there ? part + next : 0, parts.floats))"};
  EXPECT_FALSE(check_of(test, inputs, shape, {.forward = twice, .of_both = kOnce}).passed());
}

TEST(PersistentSplitKvFaultsDeathTest, AreSeen) {
  const auto run = [](const char* text, const char* instead) {
    const checking::CheckCase test = paged_case({3, 4, 2, 1, 300, 32, 16});
    check_of(test, inputs_of(test, {300, 20, 90}), shape_of(test.problem, 16, 2), {.forward = {text, instead}});
  };
  EXPECT_DEATH(run("  if (parts.cta >= parts.ctas.parts) return;\n", "  if (team > 3) return;\n"),
               "threads wait for each other forever");
}

TEST(PersistentSplitKvShapes, AreForLengthsInDeviceMemory) {
  DeviceProperties device;
  device.multiprocessors = 132;
  AttentionProblem problem = paged_case({2, 4, 2, 1, 100, 64, 16}).problem;
  for (const std::int64_t room : {101376, 166912, 232448}) {
    device.shared_memory_per_block = room;
    for (const std::int64_t dim : {8, 64, 128, 192, 256}) {
      problem.dim_qk = problem.dim_v = dim;
      const std::vector<SplitKvShape> shapes = persistent_split_kv_shapes(problem, device);
      EXPECT_GE(shapes.size(), 2U) << dim << " and " << room;  // 64 rows of 256 dims lack room in the smallest
      for (const SplitKvShape& shape : shapes) {
        EXPECT_GE(shape.stages, 2);
        EXPECT_EQ(shape.persistent_ctas, 132 * shape.blocks);
        EXPECT_LE(split_kv_shared_bytes(shape, dim, dim) * static_cast<std::size_t>(shape.blocks),
                  static_cast<std::size_t>(room));
      }
    }
  }
  problem.paged.reset();
  EXPECT_TRUE(persistent_split_kv_shapes(problem, device).empty());
}

/// Whatever the capacity of a cache: its length is no argument of it.
TEST(PersistentSplitKvShapes, DoNotHangOnSizes) {
  DeviceProperties device;
  device.multiprocessors = 132;
  device.shared_memory_per_block = 232448;
  const AttentionProblem few = paged_case({2, 4, 2, 1, 100, 64, 16}).problem,
                         many = paged_case({64, 4, 2, 1, 8192, 64, 16}).problem;
  EXPECT_EQ(persistent_split_kv_shapes(few, device), persistent_split_kv_shapes(many, device));
  const SplitKvShape shape = persistent_split_kv_shapes(few, device).front();
  EXPECT_EQ(split_kv_part_bytes(shape, few), split_kv_part_bytes(shape, many))
      << "partials are a device's, not a batch's";
}

}  // namespace
}  // namespace scoremod::backend::kernels
