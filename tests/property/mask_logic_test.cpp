// The interval of each op and the decision procedure of difference logic against plain enumeration.
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "analysis/interval.hpp"
#include "ir/op_table.hpp"
#include "ir/scalar_eval.hpp"
#include "masks/difference_logic.hpp"

namespace scoremod::test {
namespace {

using analysis::ValueRange;
using masks::DifferenceLogic;
using masks::FormulaRef;

template <class Real>
ir::Scalar<Real> sample(std::mt19937_64& random, Type type) {
  using Limits = std::numeric_limits<float>;
  constexpr std::int32_t kInts[] = {0, 1, -1, 2, 3, 7, -8, 100, 2147483647, -2147483647 - 1, 1 << 24, (1 << 24) + 1};
  constexpr float kFloats[] = {0.0f,
                               -0.0f,
                               1.0f,
                               -1.0f,
                               0.5f,
                               -2.5f,
                               3.0f,
                               1e-40f,
                               1e30f,
                               -1e38f,
                               Limits::infinity(),
                               -Limits::infinity(),
                               1e-20f,
                               0.1f,
                               16777216.0f,
                               Limits::quiet_NaN()};
  ir::Scalar<Real> out;
  out.i = random() % 3 == 0 ? kInts[random() % std::size(kInts)] : static_cast<std::int32_t>(random() % 40) - 20;
  out.f = random() % 3 == 0 ? kFloats[random() % std::size(kFloats)] : static_cast<float>(out.i % 64) / 4;
  out.b = random() % 2 == 0;
  if (type == Type::kF32 && random() % 8 != 0 && std::isnan(out.f)) out.f = 1;
  return out;
}

template <class Real>
double number(const ir::Scalar<Real>& x, Type type) {
  return type == Type::kF32 ? double(x.f) : type == Type::kI32 ? x.i : (x.b ? 1 : 0);
}

bool holds(const ValueRange& range, double x) {
  return std::isnan(x) ? range.maybe_nan : range.lo <= x && x <= range.hi;
}

template <class Real>
ValueRange range_of(const std::vector<ir::Scalar<Real>>& samples, Type type) {
  ValueRange out{1, 0, false};
  bool first = true;
  for (const auto& value : samples) {
    const double x = number(value, type);
    if (std::isnan(x)) {
      out.maybe_nan = true;
      continue;
    }
    out.lo = first ? x : std::min(out.lo, x);
    out.hi = first ? x : std::max(out.hi, x);
    first = false;
  }
  if (first) out = {0, 0, true};
  return out;
}

/// Every result of the op on samples must lie in the interval that the samples' ranges give.
template <class Real>
void check_op(const ir::OpInfo& row, const std::vector<Type>& types, std::mt19937_64& random) {
  std::string why;
  const auto type = ir::infer_type(row.op, types, &why);
  if (!type) return;
  Node node;
  node.op = row.op;
  node.type = *type;
  node.arg_count = static_cast<std::uint8_t>(types.size());
  for (int round = 0; round < 300; ++round) {
    std::vector<std::vector<ir::Scalar<Real>>> samples;
    std::vector<ValueRange> ranges;
    for (const Type t : types) {
      auto& column = samples.emplace_back();
      const std::size_t count = 1 + random() % 4;
      for (std::size_t i = 0; i < count; ++i) column.push_back(sample<Real>(random, t));
      ranges.push_back(range_of(column, t));
    }
    const ValueRange range = analysis::range_of_op(node, types[0], ranges);
    for (int i = 0; i < 12; ++i) {
      std::vector<ir::Scalar<Real>> args;
      for (const auto& column : samples) args.push_back(column[random() % column.size()]);
      const double result = number(ir::eval_op<Real>(node, types[0], args), *type);
      ASSERT_TRUE(holds(range, result)) << row.name << " gives " << result << ", outside " << range.lo << ".."
                                        << range.hi << "; arguments " << number(args[0], types[0]) << ", "
                                        << (args.size() > 1 ? number(args[1], types[1]) : 0);
    }
  }
}

TEST(MaskLogic, IntervalsHoldWhateverTheOpGives) {
  std::mt19937_64 random(7);
  constexpr Type kTypes[] = {Type::kF32, Type::kI32, Type::kBool};
  for (const ir::OpInfo& row : ir::op_table()) {
    if (row.signature == ir::Signature::kLeaf) continue;
    for (const Type type : kTypes) {
      std::vector<Type> types(static_cast<std::size_t>(row.arity), type);
      if (row.op == Op::kSelect) types[0] = Type::kBool;
      check_op<float>(row, types, random);
      check_op<double>(row, types, random);
      if (HasFatalFailure()) return;
    }
  }
}

constexpr int kFormulaVariables = 3;

/// A formula as a function of three values and two booleans, beside the same in difference logic.
struct Pair {
  FormulaRef ref;
  std::function<bool(const std::array<int, kFormulaVariables>&, int)> eval;
};

class RandomFormula {
 public:
  explicit RandomFormula(std::mt19937_64& random) : random_(random) {
    // Values 0..7 each; the constant 0 takes part as well.
    for (int i = 0; i < kFormulaVariables; ++i) variables_.push_back(logic_.variable(0, 7));
  }

  DifferenceLogic& logic() { return logic_; }
  DifferenceLogic::Variable variable(std::size_t i) const { return variables_[i]; }

  Pair make(int depth) {
    if (depth == 0) return leaf();
    Pair x = make(depth - 1);
    if (random_() % 6 == 0) return {!x.ref, [x](const auto& v, int b) { return !x.eval(v, b); }};
    Pair y = make(depth - 1);
    switch (random_() % 3) {
      case 0: return {logic_.both(x.ref, y.ref), [x, y](const auto& v, int b) { return x.eval(v, b) && y.eval(v, b); }};
      case 1:
        return {logic_.either(x.ref, y.ref), [x, y](const auto& v, int b) { return x.eval(v, b) || y.eval(v, b); }};
      default:
        return {logic_.differ(x.ref, y.ref), [x, y](const auto& v, int b) { return x.eval(v, b) != y.eval(v, b); }};
    }
  }

 private:
  Pair leaf() {
    if (random_() % 6 == 0) {
      const auto key = static_cast<std::uint32_t>(random_() % 2);
      return {logic_.free(key), [key](const auto&, int b) { return ((b >> key) & 1) != 0; }};
    }
    const std::size_t i = random_() % (kFormulaVariables + 1);
    const std::size_t j = random_() % (kFormulaVariables + 1);
    const auto bound = static_cast<int>(random_() % 15) - 7;
    const auto of = [this](std::size_t k) { return k == kFormulaVariables ? DifferenceLogic::kZero : variables_[k]; };
    return {logic_.at_most(of(i), of(j), bound), [i, j, bound](const auto& v, int) {
              return (i == kFormulaVariables ? 0 : v[i]) - (j == kFormulaVariables ? 0 : v[j]) <= bound;
            }};
  }

  std::mt19937_64& random_;
  DifferenceLogic logic_;
  std::vector<DifferenceLogic::Variable> variables_;
};

TEST(MaskLogic, DifferenceLogicDecidesAsEnumerationDoes) {
  int unsatisfiable = 0;
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
    std::mt19937_64 random(seed);
    RandomFormula maker(random);
    const Pair formula = maker.make(static_cast<int>(seed % 4));
    bool any = false;
    int highest = -100;
    int lowest = 100;
    std::array<int, kFormulaVariables> v{};
    for (v[0] = 0; v[0] < 8; ++v[0]) {
      for (v[1] = 0; v[1] < 8; ++v[1]) {
        for (v[2] = 0; v[2] < 8; ++v[2]) {
          for (int b = 0; b < 4; ++b) {
            if (!formula.eval(v, b)) continue;
            any = true;
            highest = std::max(highest, v[0] - v[1]);
            lowest = std::min(lowest, v[0] - v[1]);
          }
        }
      }
    }
    unsatisfiable += any ? 0 : 1;
    // Exact both ways: all constraints lie within the range of the enumeration.
    ASSERT_EQ(maker.logic().never(formula.ref), !any) << "seed " << seed;
    const auto hull = maker.logic().hull(formula.ref, maker.variable(0), maker.variable(1));
    ASSERT_TRUE(hull.has_value());
    if (!any) continue;
    ASSERT_FALSE(hull->empty);
    EXPECT_TRUE(!hull->last || *hull->last >= highest) << "seed " << seed;
    EXPECT_TRUE(!hull->first || *hull->first <= lowest) << "seed " << seed;
  }
  EXPECT_GT(unsatisfiable, 50);
}

TEST(MaskLogic, HullsAreTight) {
  DifferenceLogic logic;
  const auto x = logic.variable(0, 99);
  const auto y = logic.variable(0, 99);
  const auto z = logic.variable(0, 99);
  const FormulaRef chain = logic.both(logic.at_most(x, z, 3), logic.at_most(z, y, 4));
  const auto through_z = logic.hull(chain, x, y);
  ASSERT_TRUE(through_z && through_z->last);
  EXPECT_EQ(*through_z->last, 7);
  EXPECT_FALSE(through_z->first.has_value());
  const auto nothing = logic.hull(logic.both(logic.at_most(x, y, 2), !logic.at_most(x, y, 5)), x, y);
  ASSERT_TRUE(nothing.has_value());
  EXPECT_TRUE(nothing->empty);
}

TEST(MaskLogic, AQuestionThatIsTooLargeIsNotProven) {
  DifferenceLogic logic;
  FormulaRef all = DifferenceLogic::constant(true);
  std::vector<DifferenceLogic::Variable> variables;
  for (int i = 0; i < 20; ++i) variables.push_back(logic.variable({}, {}));
  for (int i = 0; i + 1 < 20; ++i) {
    all = logic.both(all, logic.at_most(variables[std::size_t(i)], variables[std::size_t(i) + 1], -1));
  }
  // A cycle that nothing satisfies, over more variables than are tried.
  all = logic.both(all, logic.at_most(variables.back(), variables.front(), -1));
  EXPECT_FALSE(logic.never(all));
  EXPECT_FALSE(logic.hull(all, variables[0], variables[1]).has_value());
}

}  // namespace
}  // namespace scoremod::test
