// The persistent decode kernel by warpgroups, and the pages that TMA loads, on a host, thread by thread: against the
// float64 oracle.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/kernels/family.hpp"
#include "backend/kernels/hopper/family.hpp"
#include "backend/kernels/split_kv/family.hpp"
#include "base/concat.hpp"
#include "problem/row_addressing.hpp"
#include "support/attention_kernels_cases.hpp"
#include "support/check_report.hpp"
#include "support/emulated_attention.hpp"
#include "support/paged_decode_cases.hpp"
#include "support/test_seed.hpp"

namespace scoremod::backend::kernels {
namespace {

using Fault = test::EmulatedLaunches::Fault;
using test::inputs_of, test::paged_case, test::with_ragged_queries;

const Fault kOnce{test::kRowsAgain, ""};

SplitKvShape shape_of(const AttentionProblem& problem, int ctas) {
  SplitKvShape shape = persistent_hopper_split_kv_shape(problem, 6);
  shape.persistent_ctas = ctas;
  return shape;
}

CheckReport check_of(const checking::CheckCase& test, const ProblemInputs& inputs, const SplitKvShape& shape,
                     const test::EmulatedFaults& faults = {.of_both = kOnce}) {
  return test::check_emulated(
      test, inputs, [&](const AttentionProblem&, Direction) { return shape; }, faults);
}

bool has_hopper_shapes(const AttentionProblem& problem) {
  return hopper_objections(problem, Direction::kForward, kHopperCapability).empty() &&
         hopper_split_kv_objections(problem).empty();
}

/// CTAs have several tiles each, a tile, or a part of one.
TEST(PersistentHopperDecode, IsRightInEachCase) {
  int ctas = 1, count = 0;
  for (const checking::CheckCase& test : test::split_kv_cases(true)) {
    if (!has_lengths_in_memory(test.problem) || !has_hopper_shapes(test.problem)) continue;
    SCOPED_TRACE(concat(test.name, " by ", ctas, " CTAs"));
    test::expect_right(check_of(test, random_inputs(test.problem), shape_of(test.problem, ctas)));
    ctas = ctas % 7 + 2;
    ++count;
  }
  EXPECT_GE(count, 3);
}

/// Long beside short, empty ones among them, in as many CTAs as share out the long one, and in fewer.
TEST(PersistentHopperDecodeByLengths, IsRight) {
  const checking::CheckCase test = paged_case({5, 4, 2, 1, 3000, 32, 16});
  for (const int ctas : {1, 3, 11}) {
    SCOPED_TRACE(ctas);
    test::expect_right(check_of(test, inputs_of(test, {0, 17, 2990, 1, 64}), shape_of(test.problem, ctas)));
  }
}
TEST(PersistentHopperDecodeByLengths, IsRightForManyShortSequences) {
  const checking::CheckCase test = paged_case({300, 2, 1, 1, 40, 32, 8});
  std::vector<std::int32_t> lengths(300);
  for (std::size_t i = 0; i < lengths.size(); ++i) lengths[i] = static_cast<std::int32_t>(i * 7 % 41);
  test::expect_right(check_of(test, inputs_of(test, lengths), shape_of(test.problem, 4)));
}
TEST(PersistentHopperDecodeByLengths, IsRightForRaggedQueriesOverPages) {
  const checking::CheckCase test = with_ragged_queries(paged_case({7, 8, 2, 9, 500, 32, 16}));
  for (const std::uint64_t seed : {1, 2})
    test::expect_right(check_of(test, inputs_of(test, {500, 0, 31, 470, 64, 1, 0}, seed), shape_of(test.problem, 4)));
}

/// Random problems, whose pages lie in any order, with new seeds each time.
TEST(PersistentHopperDecodeOfRandomProblems, IsRight) {
  int count = 0;
  for (std::uint64_t i = 0; count < 4 && i < 100; ++i) {
    const std::uint64_t seed = test::test_seed() + i;
    const test::PagedDecodeCase random = test::random_paged_decode(seed);
    if (!has_hopper_shapes(random.test.problem)) continue;
    ++count;
    SCOPED_TRACE(concat("problem ", i, " (SCOREMOD_TEST_SEED=", test::test_seed(), ") by ", random.ctas, " CTAs\n",
                        to_json(random.test.problem)));
    test::expect_right(check_of(random.test, inputs_of(random.test, random.lengths, seed),
                                shape_of(random.test.problem, random.ctas)));
  }
  EXPECT_EQ(count, 4);
}

TEST(PersistentHopperDecodeWithInfinitiesAndNan, IsRight) {
  for (const checking::CheckCase& test : test::split_kv_cases(true)) {
    if (test.name != "decode, large pages" && test.name != "decode, ragged") continue;
    SCOPED_TRACE(test.name);
    test::expect_right(check_of(test, test::poisoned_inputs(test.problem, 0), shape_of(test.problem, 3), {}));
  }
}

/// In whatever order CTAs, warps and copies run, and in a workspace with another call's contents.
TEST(PersistentHopperDecodeByLengths, GivesTheSameBitsEachTime) {
  const checking::CheckCase test = paged_case({5, 4, 2, 3, 700, 32, 16});
  const SplitKvShape shape = shape_of(test.problem, 5);
  const std::vector inputs{inputs_of(test, {700, 3, 0, 64, 129}), inputs_of(test, {1, 650, 80, 0, 0})};
  const auto both = test::emulated_forward_bits(test, inputs, shape, 1);
  EXPECT_EQ(test::emulated_forward_bits(test, inputs, shape, 2), both);
  EXPECT_EQ(test::emulated_forward_bits(test, inputs, shape, 3, 4), both) << "as a graph repeats them";
}

/// Fills the rows of k and v that lie behind a sequence's last key in its last page with NaNs. No page is shared.
void fill_page_ends(const AttentionProblem& problem, ProblemInputs& inputs, const std::vector<std::int32_t>& lengths) {
  constexpr std::uint16_t kNan = 0x7fc0;
  std::vector<const void*> operands;
  for (const OwnedOperand& operand : inputs.operands) operands.push_back(operand.bytes.data());
  for (const problem::TensorRole role : {problem::TensorRole::kK, problem::TensorRole::kV}) {
    auto* const numbers =
        reinterpret_cast<std::uint16_t*>((role == problem::TensorRole::kK ? inputs.k : inputs.v).data());
    for (std::size_t b = 0; b < lengths.size(); ++b) {
      for (std::int64_t key = lengths[b]; key % problem.paged->block_size != 0; ++key) {
        for (std::int64_t h = 0; h < problem.heads_kv; ++h) {
          const problem::HeadRows rows =
              problem::RowAddressing(problem, role).rows(static_cast<std::int64_t>(b), h, operands);
          std::fill_n(numbers + rows.row(key), problem.dim_qk, kNan);
        }
      }
    }
  }
}
/// They do not reach its outputs, and no row is computed again for them.
TEST(PagedTilesByTma, HaveZerosBehindTheLastKey) {
  for (const std::int64_t page : {8, 16, 64}) {
    SCOPED_TRACE(page);
    const checking::CheckCase test = paged_case({3, 4, 2, 1, 200, 32, page});
    const std::vector<std::int32_t> lengths{185, 75, 3};
    ProblemInputs inputs = inputs_of(test, lengths);
    fill_page_ends(test.problem, inputs, lengths);
    const SplitKvShape shape = shape_of(test.problem, 2);
    test::expect_right(check_of(test, inputs, shape));
    const Fault garbage{"const bool copies = kAreValues && ", "const bool copies = false && "};
    EXPECT_FALSE(check_of(test, inputs, shape, {.forward = garbage, .of_both = kOnce}).passed());
    // A page of 64 tokens has all boxes of a tile.
    const Fault other_page{"from_lane(page, last)", "from_lane(page, 0)"};
    EXPECT_EQ(check_of(test, inputs, shape, {.forward = other_page, .of_both = kOnce}).passed(), page == 64);
  }
}

struct PlantedFault {
  const char* name;
  Fault fault;
};
class PersistentHopperDecodeFaults : public ::testing::TestWithParam<PlantedFault> {};

/// Sequences of all kinds, of which one is shared out among CTAs, and others among a CTA's teams.
TEST_P(PersistentHopperDecodeFaults, AreSeen) {
  const checking::CheckCase test = paged_case({6, 8, 2, 8, 2000, 32, 64});
  const ProblemInputs inputs = inputs_of(test, {300, 0, 1900, 40, 5, 129});
  const SplitKvShape shape = shape_of(test.problem, 4);
  test::expect_right(check_of(test, inputs, shape));
  EXPECT_FALSE(check_of(test, inputs, shape, {.forward = GetParam().fault, .of_both = kOnce}).passed());
}
const PlantedFault kPlantedFaults[] = {
    {"NotedByNobody", {"open_tiles[right ? team : kTeams]", "open_tiles[team]"}},
    {"NotedTwice", {"(!left || team == 0)", "true"}},
    {"WrittenByEachTeam", {"if (left || right) {", "if (false) {"}},
    {"OneTileOfQueries", {"kAt.q + (kPersistent ? team * kAt.q_tile.bytes : 0)", "kAt.q"}},
    {"AnotherWarpsRows", {"(p, own, rows, warp_row, 0)", "(p, own, rows, warp_row ^ 16, 0)"}},
    {"AnotherBoxsPage", {"first + threadIdx.x % 32 * kBoxRows", "first + (threadIdx.x % 32 ^ 1) * kBoxRows"}},
    {"TheFirstRowsOfAPage", {"(first + lane * kBoxRows) % kBlockRows", "0 * lane"}},
    {"TheLastBoxLeftOut", {"box * kBoxRows + i / kWords", "i / kWords"}},
};
INSTANTIATE_TEST_SUITE_P(Faults, PersistentHopperDecodeFaults, ::testing::ValuesIn(kPlantedFaults),
                         [](const auto& fault) { return std::string(fault.param.name); });

/// A stage that tells the end of a team's tiles is given back, with its place for values.
TEST(PersistentHopperDecodeDeathTest, WaitsForStagesOfTheEnd) {
  const auto run = [](const char* text, const char* instead) {
    const checking::CheckCase test = paged_case({3, 4, 2, 1, 300, 32, 16});
    check_of(test, inputs_of(test, {300, 20, 90}), shape_of(test.problem, 2), {.forward = {text, instead}});
  };
  EXPECT_DEATH(run("  if (first_lane) arrive(tiles.v_full + ring.stage);\n", ""),
               "threads wait for each other forever");
}

TEST(PersistentHopperDecodeShape, HangsOnNoSizes) {
  const AttentionProblem few = paged_case({2, 4, 2, 1, 100, 64, 16}).problem,
                         many = paged_case({64, 4, 2, 1, 8192, 64, 16}).problem;
  const SplitKvShape shape = persistent_hopper_split_kv_shape(few, 132);
  EXPECT_EQ(shape, persistent_hopper_split_kv_shape(many, 132));
  EXPECT_LE(split_kv_shared_bytes(shape, 64, 64), kHopperSharedBytes);
  EXPECT_EQ(split_kv_part_bytes(shape, few), split_kv_part_bytes(shape, many));
}

/// Pages hold whole boxes of rows, or are refused.
TEST(PagesForTma, AreMultiplesOfEightTokens) {
  for (const std::int64_t page : {1, 4, 12, 8, 16, 24, 48, 64, 256}) {
    const AttentionProblem problem = paged_case({2, 4, 2, 1, 100, 64, page}).problem;
    const int rows = box_rows_of(problem);
    EXPECT_EQ(32 % rows, 0);
    EXPECT_EQ(pages_hold_boxes(problem), page % 8 == 0) << page;
    EXPECT_TRUE(page % 8 != 0 || page % rows == 0) << page;
    EXPECT_EQ(has_hopper_shapes(problem), page % 8 == 0) << page;
  }
}

}  // namespace
}  // namespace scoremod::backend::kernels
