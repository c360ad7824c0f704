#include <random>
#include <string_view>
#include <type_traits>

#include <gtest/gtest.h>

#include "backend/kernels/hopper/family.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"
#include "check/random_problem.hpp"
#include "compiler/pipeline.hpp"
#include "problem/open_sizes.hpp"
#include "problem/problem_members.hpp"
#include "problem/structure_key.hpp"
#include "support/mixed_options.hpp"
#include "support/other_sizes.hpp"
#include "support/test_seed.hpp"
#include "support/tiled_call.hpp"

namespace scoremod {
namespace {

using backend::Direction;
using compiler::CompiledProblem;

constexpr int kProblems = 400;

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
    const AttentionProblem problem = checking::random_problem(seed, test::mixed_options()).problem;
    const AttentionProblem other = test::at_other_sizes(problem, random);
    ASSERT_EQ(problem::structure_key(problem), problem::structure_key(other));
    expect_equal(compiler::at_sizes_of(other, compiler::compile(problem)), compiler::compile(other));
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(Structure, AProblemAndTheSizesOfACallAreTheProblem) {
  for (int i = 0; i < kProblems; ++i) {
    const std::uint64_t seed = test::test_seed() + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    const AttentionProblem problem = checking::random_problem(seed, test::mixed_options()).problem;
    const auto [open, sizes] = problem::with_all_sizes_open(problem);
    ASSERT_TRUE(has_open_sizes(open));
    EXPECT_EQ(problem_at(open, sizes), problem);
    EXPECT_EQ(parse_problem(to_json(open)), open);
    if (::testing::Test::HasFailure()) return;
  }
}

/// Changes one member of a problem, found by its number, whether or not the problem stays valid.
class Change {
 public:
  explicit Change(int number) : number_(number) {}

  void operator()(std::string_view, auto& member) {
    if (number_-- == 0) change(member);
  }
  /// Whether there was such a member.
  bool is_done() const { return number_ < 0; }

 private:
  static void change(bool& flag) { flag = !flag; }
  static void change(std::int64_t& size) { ++size; }
  static void change(float& number) { number = number == 0 ? -0.0f : -number; }
  template <class Enum>
  requires std::is_enum_v<Enum>
  static void change(Enum& value) { value = static_cast<Enum>(static_cast<int>(value) == 0 ? 1 : 0); }
  static void change(SequenceLengths& lengths) { lengths.q = !lengths.q; }
  static void change(PagedKeys& paged) { ++paged.block_size; }
  static void change(TensorLayout& tensor) { change(tensor.layout); }
  static void change(Program& program) { program = Program::parse("value = score * 0.37"); }
  static void change(std::vector<OperandSpec>& operands) {
    if (operands.empty()) return operands.push_back({"another", DType::kF32, {}, {}});
    operands.front().gradient = !operands.front().gradient;
  }
  template <class Value>
  static void change(std::optional<Value>& value) {
    if (!value) value.emplace();
    change(*value);
  }

  int number_;
};

/// Comparison and key say the same of a change to any member.
TEST(Structure, IsComparedAsItsKeyIs) {
  int same = 0, others = 0;
  const auto expect_agreement = [&](const AttentionProblem& problem, const AttentionProblem& other) {
    const bool is_same = problem::structure_key(problem) == problem::structure_key(other);
    EXPECT_EQ(problem::same_structure(problem, other), is_same);
    EXPECT_EQ(problem::same_structure(other, problem), is_same);
    ++(is_same ? same : others);
  };
  for (int i = 0; i < kProblems / 4; ++i) {
    const std::uint64_t seed = test::test_seed() + static_cast<std::uint64_t>(i);
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const AttentionProblem problem = checking::random_problem(seed, test::mixed_options()).problem;
    expect_agreement(problem, test::at_other_sizes(problem, random));
    expect_agreement(problem, checking::random_problem(seed + kProblems, test::mixed_options()).problem);
    for (int number = 0;; ++number) {
      SCOPED_TRACE("member " + std::to_string(number));
      AttentionProblem other = problem;
      Change change(number);
      problem::visit_members(other, change);
      if (!change.is_done()) break;
      expect_agreement(problem, other);
    }
    for (std::size_t operand = 0; operand < problem.operands.size(); ++operand) {
      AttentionProblem other = problem;
      other.operands[operand].shape.push_back(2);
      expect_agreement(problem, other);
    }
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(same, kProblems / 4 * 5);
  EXPECT_GT(others, kProblems / 4 * 20);
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
    const AttentionProblem problem = checking::random_problem(seed, test::mixed_options()).problem;
    const CompiledProblem one = compiler::compile(problem);
    const CompiledProblem other = compiler::at_sizes_of(test::at_other_sizes(problem, random), one);
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      if (direction == Direction::kBackward && !one.backward) continue;
      using namespace backend::kernels;  // NOLINT(google-build-using-namespace)
      std::vector<AnyShape> shapes;
      for (const PortableShape& shape : portable_shapes(one.problem, direction)) shapes.emplace_back(shape);
      for (const PortableShape& shape : portable_shapes(other.problem, direction)) shapes.emplace_back(shape);
      if (one.problem.dtype != DType::kF32 && !one.problem.paged)
        for (const HopperShape& shape : hopper_shapes(one.problem, direction)) shapes.emplace_back(shape);
      for (const AnyShape& shape : shapes) {
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
