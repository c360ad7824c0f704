#include <random>

#include <gtest/gtest.h>

#include "backend/kernels/hopper/family.hpp"
#include "backend/kernels/shared/tile_shape.hpp"
#include "backend/kernels/shared/tiled_source.hpp"
#include "check/random_problem.hpp"
#include "compiler/pipeline.hpp"
#include "problem/open_sizes.hpp"
#include "problem/structure_key.hpp"
#include "problem/tensor_view.hpp"
#include "support/test_seed.hpp"
#include "support/tiled_call.hpp"

namespace scoremod {
namespace {

using backend::Direction;
using compiler::CompiledProblem;

constexpr int kProblems = 400;

checking::RandomProblemOptions options() {
  checking::RandomProblemOptions options;
  options.lengths_probability = options.sink_probability = options.dropout_probability = 0.3;
  options.max_logit_probability = options.ragged_probability = options.paged_probability = 0.2;
  options.gradient_layout_probability = options.output_dtype_probability = 0.2;
  return options;
}

/// The problem at other sizes and with dense tensors: its structure is the same.
AttentionProblem at_other_sizes(AttentionProblem problem, std::mt19937_64& random) {
  const auto any = [&](std::int64_t most) { return std::uniform_int_distribution<std::int64_t>(1, most)(random); };
  problem.batch = any(4);
  problem.heads_kv = any(3);
  problem.heads_q = problem.heads_kv * any(3);
  problem.seq_q = any(200);
  problem.seq_kv = any(300);
  if (problem.tokens_q) problem.tokens_q = any(problem.batch * problem.seq_q);
  if (problem.tokens_kv) problem.tokens_kv = any(problem.batch * problem.seq_kv);
  if (problem.paged) {
    const std::int64_t block = problem.paged->block_size;
    problem.paged->blocks_per_sequence = (problem.seq_kv + block - 1) / block + any(3) - 1;
    problem.paged->blocks = any(40);
  }
  for (TensorLayout* layout : {&problem.q, &problem.k, &problem.v, &problem.o}) layout->strides.reset();
  for (auto* layout : {&problem.d_o, &problem.dq, &problem.dk, &problem.dv}) {
    if (*layout) (*layout)->strides.reset();
  }
  for (OperandSpec& spec : problem.operands) {
    spec.strides.clear();
    for (const OperandDecl& decl : problem.program.operands()) {
      if (decl.name != spec.name) continue;
      if (!decl.is_table()) {
        spec.shape = problem::default_spec(problem, decl).shape;
      } else {
        for (std::int64_t& size : spec.shape) size = any(20);
      }
    }
  }
  return problem;
}

void expect_equal(const masks::MaskClass& x, const masks::MaskClass& y) { EXPECT_EQ(x, y); }

void expect_equal(const CompiledProblem& x, const CompiledProblem& y) {
  EXPECT_EQ(x.problem, y.problem);
  EXPECT_EQ(x.forward.program, y.forward.program);
  expect_equal(x.forward.mask, y.forward.mask);
  ASSERT_EQ(x.backward.has_value(), y.backward.has_value());
  if (!x.backward) return;
  EXPECT_EQ(x.backward->program, y.backward->program);
  expect_equal(x.backward->mask, y.backward->mask);
  EXPECT_EQ(x.backward->reductions, y.backward->reductions);
}

TEST(Structure, ACompileServesAllSizesOfIt) {
  for (int i = 0; i < kProblems; ++i) {
    const std::uint64_t seed = test::test_seed() + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const AttentionProblem problem = checking::random_problem(seed, options()).problem;
    const AttentionProblem other = at_other_sizes(problem, random);
    ASSERT_EQ(problem::structure_key(problem), problem::structure_key(other));
    expect_equal(compiler::at_sizes_of(other, compiler::compile(problem)), compiler::compile(other));
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Structure, AProblemAndTheSizesOfACallAreTheProblem) {
  for (int i = 0; i < kProblems; ++i) {
    const std::uint64_t seed = test::test_seed() + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    const AttentionProblem problem = checking::random_problem(seed, options()).problem;
    const auto [open, sizes] = problem::with_all_sizes_open(problem);
    ASSERT_TRUE(has_open_sizes(open));
    EXPECT_EQ(problem_at(open, sizes), problem);
    EXPECT_EQ(parse_problem(to_json(open)), open);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Structure, AProgramADtypeAndAHeadDimAreOfIt) {
  const AttentionProblem problem = checking::random_problem(test::test_seed(), {}).problem;
  const Bytes key = problem::structure_key(problem);
  AttentionProblem other = problem;
  other.dim_qk += 1;
  EXPECT_NE(problem::structure_key(other), key);
  other = problem;
  other.backward = !other.backward;
  EXPECT_NE(problem::structure_key(other), key);
  other = problem;
  other.dtype = other.dtype == DType::kF16 ? DType::kBF16 : DType::kF16;
  EXPECT_NE(problem::structure_key(other), key);
  other = problem;
  other.program = Program::parse("value = score * 0.37");
  EXPECT_NE(problem::structure_key(other), key);
}

/// A kernel's text is looked up by its structure and shape: at other sizes the same ones must give the same text.
TEST(Structure, TheTextOfKernelsFollowsFromItAndTheShape) {
  int compared = 0;
  for (int i = 0; i < kProblems; ++i) {
    const std::uint64_t seed = test::test_seed() + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const AttentionProblem problem = checking::random_problem(seed, options()).problem;
    const CompiledProblem one = compiler::compile(problem);
    const CompiledProblem other = compiler::at_sizes_of(at_other_sizes(problem, random), one);
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      if (direction == Direction::kBackward && !one.backward) continue;
      using namespace backend::kernels;  // NOLINT(google-build-using-namespace)
      std::vector<TileShape> shapes = tile_shapes(one.problem, direction);
      for (const TileShape& shape : tile_shapes(other.problem, direction)) shapes.push_back(shape);
      if (one.problem.dtype != DType::kF32 && !one.problem.paged)
        for (const TileShape& shape : hopper_shapes(one.problem, direction)) shapes.push_back(shape);
      for (const TileShape& shape : shapes) {
        EXPECT_EQ(key_of(attention_source(one, direction, shape)), key_of(attention_source(other, direction, shape)));
        ++compared;
      }
    }
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(compared, kProblems);
}

}  // namespace
}  // namespace scoremod
