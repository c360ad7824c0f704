#include "check/random_program.hpp"

#include <cmath>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "ir/builder.hpp"
#include "ir/op_table.hpp"
#include "support/interpreter.hpp"
#include "support/test_seed.hpp"

namespace scoremod::checking {
namespace {

using test::Element;
using test::test_seed;

constexpr int kPrograms = 1000;

/// An element with everything within the ranges that tame programs are made for.
template <class Real>
Element<Real> element_of(const Program& program, std::uint64_t seed, const RandomProgramOptions& options) {
  std::mt19937_64 random(seed);
  const auto unit = [&random] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  const auto index = [&random] { return static_cast<std::int32_t>(random() % kRandomIndexLimit); };
  Element<Real> element;
  // A float32, so that both precisions start from the same number.
  element.score = static_cast<Real>(static_cast<float>((2 * unit() - 1) * options.score_limit));
  element.b = index(), element.h = index(), element.q = index(), element.kv = index();
  element.read = [&program, &options, seed](std::uint32_t operand, std::span<const std::int32_t> indices) {
    std::uint64_t place = seed * 31 + operand;
    for (const std::int32_t i : indices) place = place * 1000003 + static_cast<std::uint32_t>(std::clamp(i, 0, 50));
    std::mt19937_64 contents(place);
    ir::Scalar<Real> value;
    const double x = static_cast<double>(contents() >> 11) * 0x1p-53;
    switch (program.operands()[operand].type) {
      case Type::kF32: value.f = static_cast<Real>(static_cast<float>((2 * x - 1) * options.float_limit)); break;
      case Type::kI32:
        value.i = static_cast<std::int32_t>(options.int_low + x * (options.int_high - options.int_low));
        break;
      case Type::kBool: value.b = x < 0.5; break;
    }
    return value;
  };
  return element;
}

/// The number of bool and i32 nodes on which float32 and float64 disagree, over a few elements.
int discrete_disagreements(const Program& program, std::uint64_t seed, const RandomProgramOptions& options) {
  int found = 0;
  for (std::uint64_t i = 0; i < 10; ++i) {
    const auto single = interpret(program, element_of<float>(program, seed + i, options));
    const auto twice = interpret(program, element_of<double>(program, seed + i, options));
    for (std::size_t n = 0; n < single.size(); ++n) found += single[n].i != twice[n].i || single[n].b != twice[n].b;
  }
  return found;
}

TEST(RandomProgram, TameProgramsStayFiniteAndWithinTheirLimit) {
  const RandomProgramOptions options;
  for (int i = 0; i < kPrograms; ++i) {
    const std::uint64_t seed = test_seed() + static_cast<std::uint64_t>(i);
    std::mt19937_64 random(seed);
    const Program program = random_program(random, options);
    for (std::uint64_t k = 0; k < 5; ++k) {
      const auto values = interpret(program, element_of<float>(program, seed + k, options));
      for (std::size_t n = 0; n < values.size(); ++n) {
        ASSERT_TRUE(std::isfinite(values[n].f)) << "seed " << seed << " node " << n << "\n" << program.to_string();
      }
      // f32 may round past the limit.
      ASSERT_LE(std::abs(values[program.value()].f), options.value_limit * 1.001) << program.to_string();
    }
  }
}

TEST(RandomProgram, ContinuousProgramsTakeTheSameBranchesInBothPrecisions) {
  int with_any_continuity = 0;
  for (const Continuity continuity : {Continuity::kContinuous, Continuity::kSmooth, Continuity::kAny}) {
    RandomProgramOptions options;
    options.continuity = continuity;
    // The control has seeds of its own, because a run of random ones may well have no disagreement.
    const std::uint64_t first = continuity == Continuity::kAny ? 0 : test_seed();
    for (int i = 0; i < kPrograms; ++i) {
      const std::uint64_t seed = first + static_cast<std::uint64_t>(i);
      std::mt19937_64 random(seed);
      const Program program = random_program(random, options);
      const int found = discrete_disagreements(program, seed, options);
      if (continuity == Continuity::kAny)
        with_any_continuity += found;
      else
        ASSERT_EQ(found, 0) << "seed " << seed << "\n" << program.to_string();
    }
  }
  // The check can see a disagreement.
  EXPECT_GT(with_any_continuity, 0) << "of the seeds from 0";
}

TEST(RandomProgram, SmoothProgramsHaveNoKinksInTheScore) {
  RandomProgramOptions options;
  options.continuity = Continuity::kSmooth;
  for (int i = 0; i < kPrograms; ++i) {
    std::mt19937_64 random(test_seed() + static_cast<std::uint64_t>(i));
    const Program program = random_program(random, options);
    std::vector<bool> reads(program.nodes().size());
    for (std::size_t n = 0; n < reads.size(); ++n) {
      const Node& node = program.nodes()[n];
      reads[n] = node.op == Op::kScore || (node.op == Op::kOperand && node.type == Type::kF32);
      for (const NodeId arg : ir::args_of(node)) reads[n] = reads[n] || reads[arg];
      const bool kink = node.op == Op::kAbs || node.op == Op::kMin || node.op == Op::kMax || node.op == Op::kRelu ||
                        node.op == Op::kFloor || node.op == Op::kRound || node.op == Op::kCeil ||
                        node.op == Op::kSign || node.op == Op::kMod ||
                        (node.type != Type::kF32 && node.op != Op::kSelect);
      ASSERT_FALSE(kink && reads[n]) << "node " << n << "\n" << program.to_string();
    }
  }
}

TEST(RandomProgram, CoversEveryOpAndEveryKindOfOperand) {
  std::set<Op> ops;
  std::set<std::array<bool, kAxisCount>> axes;
  std::set<int> ranks;
  std::set<Type> table_types;
  int masked = 0;
  int reading_score = 0;
  for (int i = 0; i < kPrograms; ++i) {
    std::mt19937_64 random(static_cast<std::uint64_t>(i));
    const Program program = random_program(random, {});
    for (const Node& node : program.nodes()) ops.insert(node.op);
    for (const OperandDecl& decl : program.operands()) {
      ranks.insert(decl.table_rank);
      if (decl.is_table())
        table_types.insert(decl.type);
      else
        axes.insert(decl.axes);
    }
    masked += program.keep() != kNoNode;
    for (const Node& node : program.nodes()) reading_score += node.op == Op::kScore;
  }
  // Ops that have a meaning only in derivatives and problems.
  const auto is_bound = [](Op op) { return op == Op::kUpstream || op == Op::kScale; };
  for (const ir::OpInfo& row : ir::op_table()) EXPECT_EQ(ops.contains(row.op), !is_bound(row.op)) << row.name;
  EXPECT_EQ(axes.size(), 16u);
  EXPECT_EQ(ranks, (std::set<int>{0, 1, 2, 3}));
  EXPECT_EQ(table_types.size(), 3u);
  EXPECT_GT(masked, kPrograms / 3);
  EXPECT_LT(masked, 2 * kPrograms / 3);
  EXPECT_GT(reading_score, kPrograms * 8 / 10);
}

TEST(RandomProgram, SmoothProgramsUseEverySmoothFunction) {
  RandomProgramOptions options;
  options.continuity = Continuity::kSmooth;
  std::set<Op> ops;
  for (int i = 0; i < kPrograms; ++i) {
    std::mt19937_64 random(static_cast<std::uint64_t>(i));
    const Program program = random_program(random, options);
    std::vector<bool> reads(program.nodes().size());
    for (std::size_t n = 0; n < reads.size(); ++n) {
      reads[n] = program.nodes()[n].op == Op::kScore;
      for (const NodeId arg : ir::args_of(program.nodes()[n])) reads[n] = reads[n] || reads[arg];
      if (reads[n]) ops.insert(program.nodes()[n].op);
    }
  }
  // Functions of the score, on which derivatives are tested.
  for (const Op op : {Op::kExp,        Op::kExp2,    Op::kExpm1, Op::kLog,      Op::kLog1p, Op::kSqrt,     Op::kRsqrt,
                      Op::kReciprocal, Op::kSin,     Op::kCos,   Op::kTan,      Op::kAtan,  Op::kAtan2,    Op::kErfc,
                      Op::kTanh,       Op::kSigmoid, Op::kErf,   Op::kSoftplus, Op::kGelu,  Op::kGeluTanh, Op::kSilu,
                      Op::kPow,        Op::kDiv,     Op::kMul,   Op::kSelect}) {
    EXPECT_TRUE(ops.contains(op)) << ir::info(op).name;
  }
}

TEST(RandomProgram, FollowsItsOptions) {
  RandomProgramOptions options;
  options.ops = {Op::kAdd, Op::kMul, Op::kGe};
  options.mask_probability = 1;
  options.max_table_rank = 0;
  options.max_nodes = 200;
  std::size_t largest = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    std::mt19937_64 random(seed);
    const Program program = random_program(random, options);
    EXPECT_NE(program.keep(), kNoNode);
    for (const OperandDecl& decl : program.operands()) EXPECT_FALSE(decl.is_table());
    for (const Node& node : program.nodes()) {
      EXPECT_TRUE(node.arg_count == 0 || std::count(options.ops.begin(), options.ops.end(), node.op) > 0);
    }
    EXPECT_LE(program.nodes().size(), 212u);
    largest = std::max(largest, program.nodes().size());
  }
  EXPECT_GT(largest, 50u);
}

TEST(RandomProgram, MasksOfTheKeyMostlyKeepSomeKeys) {
  RandomProgramOptions options;
  options.mask_probability = options.key_mask_probability = 1;
  options.indices[2] = {100, 139};
  options.indices[3] = {1000, 1059};
  const auto partly_kept = [&] {
    int found = 0;
    for (std::uint64_t seed = 0; seed < 500; ++seed) {
      std::mt19937_64 random(seed);
      const Program program = random_program(random, options);
      int kept = 0;
      Element<float> element = element_of<float>(program, seed, options);
      element.q = 100 + static_cast<std::int32_t>(seed % 40);
      for (element.kv = 1000; element.kv < 1060; ++element.kv) kept += interpret(program, element)[program.keep()].b;
      found += kept > 0 && kept < 60 ? 1 : 0;
    }
    return found;
  };
  const int of_key = partly_kept();
  options.key_mask_probability = 0;
  const int of_anything = partly_kept();
  EXPECT_GT(of_key, 200);
  EXPECT_LT(of_anything, 100);
}

TEST(RandomProgram, IsAFunctionOfTheSeed) {
  std::set<std::string> texts;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    std::mt19937_64 first(seed), second(seed);
    const Program program = random_program(first, {});
    EXPECT_EQ(program, random_program(second, {}));
    texts.insert(program.to_string());
  }
  EXPECT_EQ(texts.size(), 100u);
}

}  // namespace
}  // namespace scoremod::checking
