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

TEST(Interval, ANanConstantMayBeAnything) {
  const Program program = Program::parse("value = nan");
  expect_range(constant_range(program.nodes()[program.value()]), -kInf, kInf, true);
}

}  // namespace
}  // namespace scoremod::analysis
