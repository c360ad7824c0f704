#include "analysis/interval.hpp"

#include <array>
#include <limits>

#include <gtest/gtest.h>

namespace scoremod::analysis {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

void expect_range(const ValueRange& found, double lo, double hi, bool maybe_nan) {
  EXPECT_EQ(found.lo, lo);
  EXPECT_EQ(found.hi, hi);
  EXPECT_EQ(found.maybe_nan, maybe_nan);
}

TEST(Interval, AZeroThatMayBeNanMayBeTrue) {
  Node to_bool;
  to_bool.op = Op::kToBool;
  to_bool.type = Type::kBool;
  to_bool.arg_count = 1;
  const auto as_bool = [&](ValueRange x) { return range_of_op(to_bool, Type::kF32, std::array{x}); };
  expect_range(as_bool({0, 0, false}), 0, 0, false);
  expect_range(as_bool({0, 0, true}), 0, 1, false);
  expect_range(as_bool({2, 3, true}), 1, 1, false);
}

TEST(Interval, AnIntegerOfANanIsZero) {
  Node to_i32;
  to_i32.op = Op::kToI32;
  to_i32.type = Type::kI32;
  to_i32.arg_count = 1;
  const auto as_i32 = [&](ValueRange x) { return range_of_op(to_i32, Type::kF32, std::array{x}); };
  expect_range(as_i32({2.5, 3.5, false}), 2, 3, false);
  expect_range(as_i32({2.5, 3.5, true}), 0, 3, false);
}

/// Masks are decided by these bounds, so that they may be a little wide, and not more.
TEST(Interval, FunctionsWithBoundsStayWithinThem) {
  struct Bounds {
    Op op;
    double lo, hi;
  };
  constexpr double kWidest = 1e-3;
  for (const auto& [op, lo, hi] :
       {Bounds{Op::kSigmoid, 0, 1}, Bounds{Op::kTanh, -1, 1}, Bounds{Op::kErf, -1, 1}, Bounds{Op::kErfc, 0, 2}}) {
    Node node;
    node.op = op;
    node.arg_count = 1;
    for (const bool maybe_nan : {false, true}) {
      const ValueRange found = range_of_op(node, Type::kF32, std::array{ValueRange{-kInf, kInf, maybe_nan}});
      EXPECT_LE(found.lo, lo);
      EXPECT_GE(found.lo, lo - kWidest);
      EXPECT_GE(found.hi, hi);
      EXPECT_LE(found.hi, hi + kWidest);
      EXPECT_EQ(found.maybe_nan, maybe_nan);
    }
  }
}

TEST(Interval, ANanConstantMayBeAnything) {
  const Program program = Program::parse("value = nan");
  expect_range(constant_range(program.nodes()[program.value()]), -kInf, kInf, true);
}

}  // namespace
}  // namespace scoremod::analysis
