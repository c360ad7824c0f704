// The decode kernel whose loads run on from one tile of rows to the next, on a host, thread by thread, against the
// float64 oracle. Teams take whole tiles of rows in some tests, and even shares of chunks in others.

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "backend/kernels/split_kv/family.hpp"
#include "base/concat.hpp"
#include "support/attention_kernels_cases.hpp"
#include "support/check_report.hpp"
#include "support/emulated_attention.hpp"
#include "support/paged_decode_cases.hpp"
#include "support/test_seed.hpp"

namespace scoremod::backend::kernels {
namespace {

using Fault = test::EmulatedLaunches::Fault;
using test::inputs_of, test::paged_case, test::with_ragged_queries;

/// Rows that are not finite are not recomputed, so that faults show.
const Fault kOnce{test::kRowsAgain, ""};

DeviceProperties device_of_six() {
  DeviceProperties device;
  device.compute_capability = 90;
  device.multiprocessors = 6;
  device.shared_memory_per_block = 232448;
  return device;
}

SplitKvShape shape_of(const AttentionProblem& problem, int ctas, int warps = kStreamedWarps) {
  SplitKvShape shape = streamed_split_kv_shape(warps, problem, device_of_six());
  shape.persistent_ctas = ctas;
  return shape;
}

CheckReport check_of(const checking::CheckCase& test, const ProblemInputs& inputs, const SplitKvShape& shape,
                     const test::EmulatedFaults& faults = {.of_both = kOnce}) {
  return test::check_emulated(
      test, inputs, [&](const AttentionProblem&, Direction) { return shape; }, faults);
}

/// So many lengths from 0 to `longest`, in an order that repeats late.
std::vector<std::int32_t> lengths_of(std::size_t count, std::int32_t longest) {
  std::vector<std::int32_t> lengths(count);
  for (std::size_t i = 0; i < count; ++i)
    lengths[i] = static_cast<std::int32_t>(i * 37 % static_cast<std::size_t>(longest + 1));
  return lengths;
}

struct StreamedCase {
  const char* name;
  int ctas;
};
class StreamedDecode : public ::testing::TestWithParam<StreamedCase> {};

TEST_P(StreamedDecode, IsRight) {
  for (checking::CheckCase& test : test::split_kv_cases(true)) {
    if (test.name != GetParam().name) continue;
    test::expect_right(check_of(test, random_inputs(test.problem), shape_of(test.problem, GetParam().ctas)));
    return;
  }
  FAIL() << "no such case";
}
const StreamedCase kCases[] = {
    {"decode, pages", 1},       {"decode, pages", 3},  {"decode, pages by heads", 2},
    {"decode, large pages", 7}, {"decode, ragged", 2}, {"decode, ragged", 40},
};
INSTANTIATE_TEST_SUITE_P(Cases, StreamedDecode, ::testing::ValuesIn(kCases));

/// Teams have even shares: a sequence of many CTAs' lies beside short and empty ones.
TEST(StreamedDecodeByLengths, IsRightOfOneLongSequence) {
  const checking::CheckCase test = paged_case({5, 4, 2, 1, 3000, 32, 16});
  for (const int ctas : {1, 3, 11}) {
    SCOPED_TRACE(ctas);
    test::expect_right(check_of(test, inputs_of(test, {0, 17, 2990, 1, 64}), shape_of(test.problem, ctas)));
  }
}
/// Teams take whole tiles of rows, of which some have no keys and some a tile of keys alone.
TEST(StreamedDecodeByLengths, IsRightOfManyShortSequences) {
  const checking::CheckCase test = paged_case({90, 2, 2, 1, 200, 32, 1}),
                            long_pages = paged_case({40, 4, 2, 1, 500, 32, 64});
  for (const int warps : {4, 7, 8}) {
    SCOPED_TRACE(warps);
    test::expect_right(check_of(test, inputs_of(test, lengths_of(90, 40)), shape_of(test.problem, 3, warps)));
    test::expect_right(
        check_of(long_pages, inputs_of(long_pages, lengths_of(40, 500)), shape_of(long_pages.problem, 2, warps)));
  }
}
TEST(StreamedDecodeByLengths, IsRightWithoutAnyKey) {
  const checking::CheckCase test = paged_case({3, 4, 2, 2, 100, 32, 16});
  test::expect_right(check_of(test, inputs_of(test, {0, 0, 0}), shape_of(test.problem, 6)));
  const checking::CheckCase many = paged_case({30, 4, 2, 2, 100, 32, 16});
  test::expect_right(check_of(many, inputs_of(many, std::vector<std::int32_t>(30, 0)), shape_of(many.problem, 2)));
}
/// Each of several tiles of rows has all keys.
TEST(StreamedDecodeByLengths, IsRightOfMoreRowsThanATileHas) {
  const checking::CheckCase few = paged_case({3, 8, 2, 9, 300, 32, 16}), many = paged_case({20, 8, 2, 9, 300, 32, 16});
  test::expect_right(check_of(few, inputs_of(few, {300, 2, 77}), shape_of(few.problem, 5)));
  test::expect_right(check_of(many, inputs_of(many, lengths_of(20, 90)), shape_of(many.problem, 4)));
}
TEST(StreamedDecodeByLengths, IsRightOfRaggedQueries) {
  const checking::CheckCase few = with_ragged_queries(paged_case({7, 8, 2, 9, 500, 32, 16}));
  test::expect_right(check_of(few, inputs_of(few, {500, 0, 31, 470, 64, 1, 0}), shape_of(few.problem, 4)));
  const checking::CheckCase many = with_ragged_queries(paged_case({24, 4, 2, 4, 300, 32, 16}));
  test::expect_right(check_of(many, inputs_of(many, lengths_of(24, 200)), shape_of(many.problem, 2)));
}
TEST(StreamedDecodeByLengths, IsRightWithInfinitiesAndNan) {
  const checking::CheckCase few = paged_case({4, 4, 2, 2, 300, 32, 16}), many = paged_case({20, 4, 2, 2, 60, 32, 16});
  test::expect_right(check_of(few, test::poisoned_inputs(few.problem, 0), shape_of(few.problem, 3), {}));
  test::expect_right(check_of(many, test::poisoned_inputs(many.problem, 0), shape_of(many.problem, 2), {}));
}

TEST(StreamedDecodeOfRandomProblems, IsRight) {
  for (std::uint64_t i = 0, found = 0; found < 4; ++i) {
    const std::uint64_t seed = test::test_seed() + i;
    const test::PagedDecodeCase random = test::random_paged_decode(seed);
    if (!streamed_split_kv_objections(random.test.problem).empty()) continue;
    ++found;
    SCOPED_TRACE(concat("problem ", i, " (SCOREMOD_TEST_SEED=", test::test_seed(), ") by ", random.ctas, " CTAs\n",
                        to_json(random.test.problem)));
    test::expect_right(check_of(random.test, inputs_of(random.test, random.lengths, seed),
                                shape_of(random.test.problem, random.ctas)));
  }
}

/// Device memory is not validated.
TEST(StreamedDecodeByLengths, IsThatOfTheNearestLengthThatThereCanBe) {
  const checking::CheckCase test = paged_case({3, 4, 2, 2, 200, 32, 16});
  const SplitKvShape shape = shape_of(test.problem, 3);
  const auto bits = [&](const std::vector<std::int32_t>& lengths) {
    return test::emulated_forward_bits(test, {inputs_of(test, lengths)}, shape, 1);
  };
  EXPECT_EQ(bits({-5, 1 << 30, 70}), bits({0, 200, 70}));
}

/// In whatever order CTAs, warps and copies run, in a workspace with another call's contents, and as a graph repeats
/// calls. Which team takes a tile of rows decides nothing.
TEST(StreamedDecodeByLengths, GivesTheSameBitsEachTime) {
  const checking::CheckCase test = paged_case({25, 4, 2, 3, 700, 32, 16});
  const SplitKvShape shape = shape_of(test.problem, 2);
  std::vector<std::int32_t> one_long(25, 3);
  one_long[4] = 700;
  const std::vector inputs{inputs_of(test, one_long), inputs_of(test, lengths_of(25, 100))};
  const auto both = test::emulated_forward_bits(test, inputs, shape, 1);
  EXPECT_EQ(test::emulated_forward_bits(test, inputs, shape, 2), both);
  EXPECT_EQ(test::emulated_forward_bits(test, inputs, shape, 3, 4), both) << "as a graph repeats them";
}

struct PlantedFault {
  const char* name;
  Fault fault;
  bool whole = true;  ///< of teams that take whole tiles of rows
};
class StreamedDecodeFaults : public ::testing::TestWithParam<PlantedFault> {};

TEST_P(StreamedDecodeFaults, AreSeen) {
  const bool whole = GetParam().whole;
  const checking::CheckCase test =
      whole ? paged_case({24, 4, 2, 8, 200, 32, 8}) : paged_case({6, 8, 2, 8, 2000, 32, 16});
  const ProblemInputs inputs = inputs_of(test, whole ? lengths_of(24, 150) : std::vector{300, 0, 1900, 40, 5, 129});
  const SplitKvShape shape = shape_of(test.problem, whole ? 3 : 4);
  test::expect_right(check_of(test, inputs, shape));
  EXPECT_FALSE(check_of(test, inputs, shape, {.forward = GetParam().fault, .of_both = kOnce}).passed());
}
const PlantedFault kPlantedFaults[] = {
    {"RowsOfTheNextTile", {"if (waits) return kNothing;", ""}},
    {"PiecesWithoutKeysNotWritten",
     {"if (!more) return kBegins | kNoKeys;", "if (!more) waits = false;\n      if (!more) return kNothing;"}},
    {"LastTileNotWritten", {"found == kTheEnd ||", ""}},
    {"OneTileTooFew", {"if (number >= whole->end) return false;", "if (number >= whole->end - 1) return false;"}},
    {"AnotherHead", {"piece = {{b, kv_head, kv_head * call.group,", "piece = {{b, 0, kv_head * call.group,"}},
    {"SumsKept", {"      rows.clear();\n      queries.load", "      queries.load"}},
    {"EndOfTheNextTile",
     {"stream.pieces.notes->pieces[place], rows)", "stream.pieces.notes->pieces[stream.place], rows)"}},
    {"StagesOfTheLastTile",
     {"wait_for_copies_but<kStages - 2>();\n    team_barrier<1>(tiles.team);  // the tile",
      "wait_for_copies_but<kStages - 1>();\n    team_barrier<1>(tiles.team);  // the tile"}},
    {"PagesOfTheLastTile", {"    find(p);\n    return found;", "    more = walk.next(p, b);\n    return found;"}},
    {"SumsOfOneWarp", {"own += sums[warp * 32 + 31];", ";"}, false},
    {"NotedTwice", {"(!left || tiles.team == 0)", "true"}, false},
    {"PartialsMergedByNobody", {"if (!whole) end_open_tiles(", "if (whole) end_open_tiles("}, false},
    {"MergedWhoeverIsLast", {"last = count == shares;", "last = seen == 0;"}, false},
};
INSTANTIATE_TEST_SUITE_P(Faults, StreamedDecodeFaults, ::testing::ValuesIn(kPlantedFaults),
                         [](const auto& fault) { return std::string(fault.param.name); });

TEST(StreamedDecodeShapes, AreForKeysOfTheQueriesDtypeAndNarrowHeads) {
  AttentionProblem problem = paged_case({2, 4, 2, 1, 100, 64, 16}).problem;
  for (const std::int64_t dim : {8, 64, 128}) {
    problem.dim_qk = problem.dim_v = dim;
    EXPECT_TRUE(streamed_split_kv_objections(problem).empty()) << dim;
    const SplitKvShape shape = streamed_split_kv_shape(kStreamedWarps, problem, device_of_six());
    // Eight warps of two stages were faster than seven of three (bench/results/decode_lengths.json).
    EXPECT_GE(shape.stages, dim == 128 ? 2 : 3) << dim;
    EXPECT_LE(split_kv_shared_bytes(shape, dim, dim), 232448U) << dim;
  }
  problem.dim_v = 192;
  EXPECT_FALSE(streamed_split_kv_objections(problem).empty());
  problem.dim_v = 64;
  problem.dtype_kv = DType::kE4M3;
  EXPECT_FALSE(streamed_split_kv_objections(problem).empty());
}

}  // namespace
}  // namespace scoremod::backend::kernels
