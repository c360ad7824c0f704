// Hopper's persistent forward on a host, thread by thread. It is right by the float64 oracle, and gives the same bits
// as a CTA for each tile of queries.

#include <algorithm>

#include <gtest/gtest.h>

#include "backend/kernels/hopper/family.hpp"
#include "base/element.hpp"
#include "compiler/pipeline.hpp"
#include "problem/tensor_view.hpp"
#include "support/attention_kernels_cases.hpp"
#include "support/check_report.hpp"
#include "support/emulated_attention.hpp"
#include "support/test_seed.hpp"
#include "support/tiled_call.hpp"

namespace scoremod::backend::kernels {
namespace {

using Fault = test::EmulatedLaunches::Fault;

/// A forward of one of attention_kernels_cases(), with more batches, so that there are many items.
checking::CheckCase case_of(const std::string& name, std::int64_t batch = 3) {
  std::vector<checking::CheckCase> cases = test::attention_kernels_cases(true);
  checking::CheckCase test = std::move(
      cases.at(static_cast<std::size_t>(std::ranges::find(cases, name, &checking::CheckCase::name) - cases.begin())));
  AttentionProblem& problem = test.problem;
  problem.backward = false;
  if (problem.batch == batch || problem.dropout_keys) return test;
  problem.batch = batch;
  for (std::size_t i = 0; i < problem.operands.size(); ++i) {
    OperandSpec& operand = problem.operands[i];
    if (!problem.program.operands()[i].is_table())
      operand = problem::default_spec(problem, problem.program.operands()[i]);
    operand.gradient = false;
  }
  return test;
}

/// Three tiles of queries and six of keys, of each of two batches' heads.
checking::CheckCase many_tiles(const char* program) {
  checking::CheckCase test = case_of("plain f16", 2);
  AttentionProblem& problem = test.problem;
  problem.seq_q = 450;
  problem.seq_kv = 700;
  problem.program = Program::parse(program);
  for (const OperandDecl& decl : problem.program.operands())
    problem.operands.push_back(problem::default_spec(problem, decl));
  test.name = program;
  return test;
}

constexpr const char* kPlain = "value = score";
constexpr const char* kCausal = "value = score\nkeep = kv_idx <= q_idx";
constexpr const char* kDocuments =
    "operand x: i32 [b, q_idx]\noperand y: i32 [b, kv_idx]\nvalue = score\nkeep = x == y";
/// The running max begins below all values, and earlier sums are rescaled when it is raised.
constexpr const char* kBelowZero = "value = score - 300.0";
constexpr const char* kGrows = "value = score + f32(kv_idx) - 350.0\nkeep = kv_idx <= q_idx + 250";
/// Only the last of three tiles of queries has keys.
constexpr const char* kEmptyTiles = "value = score\nkeep = q_idx >= 400 & kv_idx % 5 != 2";

HopperShape shape_of(const AttentionProblem& problem, int blocks) {
  HopperShape shape = persistent_hopper_shape(problem, 1);
  shape.persistent_ctas = blocks;
  return shape;
}

/// Rows are not recomputed, so that a sum that is not finite shows.
const Fault kOnce{"forward_rows(p, scratch, item.b, item.h, item.query_tile);", ""};

/// With `blocks` of them.
CheckReport check_of(const checking::CheckCase& test, const ProblemInputs& inputs, int blocks,
                     const test::EmulatedFaults& faults = {}) {
  const auto shape = [&](const AttentionProblem& problem, Direction) { return shape_of(problem, blocks); };
  return test::check_emulated(test, inputs, shape, faults);
}

class PersistentKernels : public ::testing::TestWithParam<const char*> {};

TEST_P(PersistentKernels, AreRight) {
  const checking::CheckCase test = case_of(GetParam());
  test::expect_right(check_of(test, random_inputs(test.problem), 2, {.of_both = kOnce}));
}
INSTANTIATE_TEST_SUITE_P(Cases, PersistentKernels,
                         ::testing::Values("plain f16", "causal with offsets", "global keys and a window",
                                           "nothing kept", "documents", "mask by head", "mask by the score",
                                           "wide heads", "192 and 128", "unaligned rows", "dropout by keys",
                                           "a learned sink, dropout and the largest score", "ragged", "ragged queries",
                                           "ragged, many sequences", "ragged keys with dropout", "o in f32",
                                           "differences of every kind", "differences, ragged"));

/// Rings of tiles go round from item to item: with one block, some, and more of them than there are items.
TEST(PersistentKernelsOfManyTiles, AreRight) {
  struct Many {
    const char* program;
    int blocks;
  };
  for (const auto& [program, blocks] : {Many{kPlain, 1}, Many{kCausal, 4}, Many{kDocuments, 132}, Many{kDocuments, 5},
                                        Many{kEmptyTiles, 1}, Many{kBelowZero, 2}, Many{kGrows, 3}}) {
    SCOPED_TRACE(testing::Message() << program << ", blocks " << blocks);
    const checking::CheckCase test = many_tiles(program);
    test::expect_right(check_of(test, random_inputs(test.problem), blocks, {.of_both = kOnce}));
  }
}

/// Plain scores below zero, whose first tiles hold lower ones than later tiles: a comparison with 0 does not tell
/// whether the running max must be raised.
ProblemInputs low_scores(const checking::CheckCase& test, std::int64_t lower_keys) {
  const AttentionProblem& problem = test.problem;
  ProblemInputs inputs = random_inputs(problem);
  for (std::size_t i = 0; i < inputs.q.size() / size_of(problem.dtype); ++i)
    store_element(inputs.q.data(), problem.dtype, static_cast<std::int64_t>(i), 1.0);
  const Strides strides = problem::strides_of(problem, problem::TensorRole::kK);
  for (std::int64_t b = 0; b < problem.batch; ++b)
    for (std::int64_t h = 0; h < problem.heads_kv; ++h)
      for (std::int64_t kv = 0; kv < problem.seq_kv; ++kv)
        for (std::int64_t d = 0; d < problem.dim_qk; ++d) {
          const std::int64_t at = b * strides.batch + h * strides.head + kv * strides.sequence + d * strides.dim;
          store_element(inputs.k.data(), problem.dtype, at, kv < lower_keys ? -37.5 : -12.5);
        }
  return inputs;
}

TEST(PersistentKernelsOfLowScores, AreRight) {
  const checking::CheckCase test = many_tiles(kPlain);
  const ProblemInputs inputs = low_scores(test, 400);
  test::expect_right(check_of(test, inputs, 2, {.of_both = kOnce}));
  const Fault by_zero{"may_grow |= x * unit >", "may_grow |= x > 0.0f && x * unit >"};
  EXPECT_FALSE(check_of(test, inputs, 2, {.forward = by_zero, .of_both = kOnce}).passed());
}

std::vector<std::uint64_t> bits_of(const checking::CheckCase& test, const std::vector<ProblemInputs>& inputs,
                                   int blocks) {
  return test::emulated_forward_bits(test, inputs, shape_of(compiler::compile(test.problem).problem, blocks),
                                     static_cast<unsigned>(test::test_seed()));
}

/// Also with rows that are recomputed.
TEST(PersistentKernels, GiveTheBitsOfABlockForEachTile) {
  for (const checking::CheckCase& test :
       {many_tiles(kDocuments), many_tiles(kEmptyTiles), case_of("ragged"), case_of("192 and 128"),
        case_of("a learned sink, dropout and the largest score")}) {
    SCOPED_TRACE(test.name);
    const std::vector inputs{random_inputs(test.problem), test::poisoned_inputs(test.problem, 0)};
    EXPECT_EQ(bits_of(test, inputs, 2), bits_of(test, inputs, 0));
  }
}

class PersistentKernelsOfPoison : public ::testing::TestWithParam<const char*> {};

TEST_P(PersistentKernelsOfPoison, AreRight) {
  const checking::CheckCase test = case_of(GetParam());
  test::expect_right(check_of(test, test::poisoned_inputs(test.problem, 0), 1));
}
INSTANTIATE_TEST_SUITE_P(Cases, PersistentKernelsOfPoison,
                         ::testing::Values("causal", "documents", "infinite values", "wide heads"));

TEST(PersistentKernels, AreAsManyAsTheDeviceHasMultiprocessorsOrTiles) {
  const compiler::CompiledProblem compiled = compiler::compile(many_tiles(kPlain).problem);
  const auto launches = [&](int blocks) {
    return test::attention_call(compiled, Direction::kForward, shape_of(compiled.problem, blocks)).launches();
  };
  EXPECT_EQ(launches(5).back().blocks, 5);
  EXPECT_EQ(launches(132).back().blocks, 8);
  EXPECT_EQ(launches(0).back().blocks, 8);
  ASSERT_EQ(launches(5).size(), 2U);
  EXPECT_EQ(launches(5).front().kernel, "hopper_begin_items");
  const compiler::CompiledProblem documents = compiler::compile(many_tiles(kDocuments).problem);
  const KernelCall kernels = test::attention_call(documents, Direction::kForward, shape_of(documents.problem, 5));
  ASSERT_EQ(kernels.launches().size(), 2U) << "the kernel that finds states counts from 0 anew";
  EXPECT_EQ(kernels.launches().front().kernel, "attention_block_mask");
}

TEST(PersistentKernels, HaveRoomForTwoTilesOfQueriesWhereTheseFit) {
  AttentionProblem problem = case_of("plain f16").problem;
  const auto stages = [&](std::int64_t dim_qk, std::int64_t dim_v, int blocks) {
    problem.dim_qk = dim_qk;
    problem.dim_v = dim_v;
    return hopper_query_stages(shape_of(problem, blocks), dim_qk, dim_v);
  };
  EXPECT_EQ(stages(64, 64, 132), 2);
  EXPECT_EQ(stages(128, 128, 132), 2);
  EXPECT_EQ(stages(192, 128, 132), 1);
  EXPECT_EQ(stages(256, 256, 132), 1);
  EXPECT_EQ(stages(128, 128, 0), 1);
}

/// The checks above would see it: each of these makes them fail.
TEST(PersistentKernelsFaults, AreSeen) {
  const auto passes = [](const checking::CheckCase& test, const Fault& fault) {
    return check_of(test, random_inputs(test.problem), 2, {.forward = fault}).passed();
  };
  EXPECT_FALSE(passes(many_tiles(kPlain), {"if (threadIdx.x == 0) *p.call.taken = 0;", ""})) << "another call's count";
  EXPECT_FALSE(passes(many_tiles(kDocuments), {"call.taken != nullptr) *call.taken = 0;", "false) return;"}))
      << "the same, by the kernel of states";
  EXPECT_FALSE(passes(many_tiles(kEmptyTiles), {"if (!is_last && is_over(call, item)) continue;",
                                                "if (!is_last && item.query_tile == 1) continue;"}))
      << "rows without a key that nobody writes";
  const checking::CheckCase causal = case_of("causal");
  EXPECT_FALSE(check_of(causal, test::poisoned_inputs(causal.problem, 0), 1, {.of_both = kOnce}).passed())
      << "rows of NaN";
  const checking::CheckCase one_item = case_of("causal", 1);
  EXPECT_FALSE(check_of(one_item, test::poisoned_inputs(one_item.problem, 0), 1,
                        {.forward = {"if (count > 0) look_back", "if (count > 0 && !is_last) look_back"}})
                   .passed())
      << "the last item's rows of NaN";
}

TEST(PersistentKernelsFaultsDeathTest, AreSeen) {
  const auto run = [](const char* text, const char* instead) {
    const checking::CheckCase test = many_tiles(kCausal);
    check_of(test, random_inputs(test.problem), 2, {.forward = {text, instead}});
  };
  EXPECT_DEATH(run("consumer_release(tiles.v_empty + ring.stage);\n    ring.advance", "ring.advance"),
               "threads wait for each other forever");
  EXPECT_DEATH(run("    consumer_release(tiles.q_empty + stage);\n", ""), "threads wait for each other forever");
  EXPECT_DEATH(run("  scheduler_begin();\n  for (int count = 0", "  for (int count = 0"),
               "threads wait for each other forever");
}

}  // namespace
}  // namespace scoremod::backend::kernels
