#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/program.hpp"

#include "ir/op_table.hpp"
#include "support/interpreter.hpp"

namespace scoremod {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr std::int32_t kLowest = INT32_MIN;

/// An expression of the text form and its value. The arguments are exact in float32.
struct Case {
  const char* expression;
  std::variant<double, std::int32_t, bool> expected;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
      // Arithmetic of f32.
      {"1.5 + 2.0", 3.5},
      {"inf + -inf", kNan},
      {"nan + 1.0", kNan},
      {"1.5 - 2.0", -0.5},
      {"inf - inf", kNan},
      {"1.5 * -2.0", -3.0},
      {"0.0 * inf", kNan},
      {"-1.0 * 0.0", -0.0},
      {"3.0 / 2.0", 1.5},
      {"1.0 / 0.0", kInf},
      {"-1.0 / 0.0", -kInf},
      {"1.0 / -0.0", -kInf},
      {"0.0 / 0.0", kNan},
      {"1.0 / inf", 0.0},
      {"-1.0 / inf", -0.0},
      {"7.5 % 2.0", 1.5},
      {"-7.5 % 2.0", 0.5},
      {"7.5 % -2.0", -0.5},
      {"-7.5 % -2.0", -1.5},
      {"6.0 % 2.0", 0.0},
      {"5.0 % 0.0", kNan},
      {"inf % 2.0", kNan},
      {"nan % 2.0", kNan},
      {"5.0 % inf", 5.0},
      {"-5.0 % inf", kInf},
      {"5.0 % -inf", -kInf},
      {"0.0 % inf", 0.0},
      {"pow(2.0, 10.0)", 1024.0},
      {"pow(-2.0, 3.0)", -8.0},
      {"pow(-2.0, 0.5)", kNan},
      {"pow(nan, 0.0)", 1.0},
      {"pow(1.0, nan)", 1.0},
      {"pow(0.0, -1.0)", kInf},
      {"pow(0.0, 0.0)", 1.0},
      {"pow(4.0, 0.5)", 2.0},
      {"pow(inf, -1.0)", 0.0},
      {"min(1.0, 2.0)", 1.0},
      {"min(nan, 1.0)", kNan},
      {"min(1.0, nan)", kNan},
      {"min(-inf, 1.0)", -kInf},
      {"max(1.0, 2.0)", 2.0},
      {"max(nan, 1.0)", kNan},
      {"max(1.0, nan)", kNan},
      {"max(-inf, 1.0)", 1.0},
      {"-(2.5)", -2.5},
      {"-(0.0)", -0.0},
      {"-(inf)", -kInf},
      {"abs(-2.5)", 2.5},
      {"abs(-0.0)", 0.0},
      {"abs(-inf)", kInf},
      {"abs(nan)", kNan},
      {"sign(-2.5)", -1.0},
      {"sign(2.5)", 1.0},
      {"sign(0.0)", 0.0},
      {"sign(-0.0)", -0.0},
      {"sign(-inf)", -1.0},
      {"sign(nan)", kNan},
      {"floor(1.5)", 1.0},
      {"floor(-1.5)", -2.0},
      {"floor(-inf)", -kInf},
      {"floor(nan)", kNan},
      {"ceil(1.5)", 2.0},
      {"ceil(-1.5)", -1.0},
      {"ceil(-0.5)", -0.0},
      {"ceil(nan)", kNan},
      {"round(0.5)", 0.0},
      {"round(1.5)", 2.0},
      {"round(2.5)", 2.0},
      {"round(-2.5)", -2.0},
      {"round(-3.5)", -4.0},
      {"round(inf)", kInf},
      {"round(nan)", kNan},
      // Arithmetic of i32.
      {"2 + 3", 5},
      {"2147483647 + 1", kLowest},
      {"2 - 3", -1},
      {"-2147483648 - 1", INT32_MAX},
      {"-4 * 3", -12},
      {"65536 * 65536", 0},
      {"2147483647 * 2", -2},
      {"7 // 2", 3},
      {"-7 // 2", -4},
      {"7 // -2", -4},
      {"-7 // -2", 3},
      {"6 // -2", -3},
      {"7 // 0", 0},
      {"-7 // 0", 0},
      {"-2147483648 // -1", kLowest},
      {"-2147483648 // 2", -1073741824},
      {"7 % 3", 1},
      {"-7 % 3", 2},
      {"7 % -3", -2},
      {"-7 % -3", -1},
      {"6 % -3", 0},
      {"7 % 0", 7},
      {"-7 % 0", -7},
      {"-2147483648 % -1", 0},
      {"-2147483648 % 3", 1},
      {"min(-2, 3)", -2},
      {"max(-2, 3)", 3},
      {"-(7)", -7},
      {"-(-2147483648)", kLowest},
      {"abs(-7)", 7},
      {"abs(-2147483648)", kLowest},
      {"sign(-7)", -1},
      {"sign(0)", 0},
      {"sign(7)", 1},
      // Functions of one f32.
      {"exp(0.0)", 1.0},
      {"exp(1.0)", 2.718281828459045},
      {"exp(-inf)", 0.0},
      {"exp(inf)", kInf},
      {"exp(nan)", kNan},
      {"exp2(3.0)", 8.0},
      {"exp2(-inf)", 0.0},
      {"exp2(0.5)", 1.4142135623730951},
      {"exp2(nan)", kNan},
      {"expm1(0.0)", 0.0},
      {"expm1(-0.0)", -0.0},
      {"expm1(1.0)", 1.718281828459045},
      {"expm1(-inf)", -1.0},
      {"expm1(0.0000152587890625)", 1.5258905478413947e-05},
      {"expm1(nan)", kNan},
      {"log(1.0)", 0.0},
      {"log(2.0)", 0.6931471805599453},
      {"log(0.0)", -kInf},
      {"log(-0.0)", -kInf},
      {"log(-1.0)", kNan},
      {"log(inf)", kInf},
      {"log(nan)", kNan},
      {"log1p(0.0)", 0.0},
      {"log1p(1.0)", 0.6931471805599453},
      {"log1p(-1.0)", -kInf},
      {"log1p(-1.5)", kNan},
      {"log1p(0.0000152587890625)", 1.5258672648362398e-05},
      {"log1p(nan)", kNan},
      {"sqrt(9.0)", 3.0},
      {"sqrt(-1.0)", kNan},
      {"sqrt(-0.0)", -0.0},
      {"sqrt(inf)", kInf},
      {"sqrt(nan)", kNan},
      {"rsqrt(4.0)", 0.5},
      {"rsqrt(0.0)", kInf},
      {"rsqrt(-1.0)", kNan},
      {"rsqrt(inf)", 0.0},
      {"rsqrt(nan)", kNan},
      {"reciprocal(4.0)", 0.25},
      {"reciprocal(0.0)", kInf},
      {"reciprocal(-0.0)", -kInf},
      {"reciprocal(-inf)", -0.0},
      {"reciprocal(nan)", kNan},
      {"sin(0.5)", 0.479425538604203},
      {"sin(-0.0)", -0.0},
      {"sin(inf)", kNan},
      {"cos(0.5)", 0.8775825618903728},
      {"cos(-inf)", kNan},
      {"tan(0.5)", 0.5463024898437905},
      {"tan(inf)", kNan},
      {"tan(nan)", kNan},
      {"tanh(0.5)", 0.46211715726000976},
      {"tanh(inf)", 1.0},
      {"tanh(-inf)", -1.0},
      {"tanh(nan)", kNan},
      {"sigmoid(0.0)", 0.5},
      {"sigmoid(1.0)", 0.7310585786300049},
      {"sigmoid(-1.0)", 0.2689414213699951},
      {"sigmoid(-inf)", 0.0},
      {"sigmoid(inf)", 1.0},
      {"sigmoid(-80.0)", 1.8048513878454153e-35},
      {"sigmoid(nan)", kNan},
      {"erf(0.5)", 0.5204998778130465},
      {"erf(inf)", 1.0},
      {"erf(-inf)", -1.0},
      {"erf(nan)", kNan},
      {"erfc(0.5)", 0.4795001221869535},
      {"erfc(5.0)", 1.5374597944280347e-12},
      {"erfc(inf)", 0.0},
      {"erfc(-inf)", 2.0},
      {"erfc(nan)", kNan},
      {"atan(1.0)", 0.7853981633974483},
      {"atan(-inf)", -1.5707963267948966},
      {"atan(nan)", kNan},
      {"atan2(1.0, -1.0)", 2.356194490192345},
      {"atan2(-2.0, 0.0)", -1.5707963267948966},
      {"atan2(0.0, -3.0)", 3.141592653589793},
      {"atan2(0.0, 0.0)", 0.0},
      {"atan2(nan, 1.0)", kNan},
      {"surrogate(2.0, 3.0)", 2.0},
      {"surrogate(2.0, nan)", 2.0},
      {"softplus(0.0)", 0.6931471805599453},
      {"softplus(1.0)", 1.3132616875182228},
      {"softplus(-inf)", 0.0},
      {"softplus(inf)", kInf},
      {"softplus(1000.0)", 1000.0},
      {"softplus(-80.0)", 1.8048513878454153e-35},
      {"softplus(nan)", kNan},
      {"relu(2.5)", 2.5},
      {"relu(-2.5)", 0.0},
      {"relu(-inf)", 0.0},
      {"relu(inf)", kInf},
      {"relu(nan)", kNan},
      {"gelu(0.0)", 0.0},
      {"gelu(1.0)", 0.8413447460685429},
      {"gelu(-1.0)", -0.15865525393145707},
      {"gelu(-inf)", 0.0},
      {"gelu(inf)", kInf},
      {"gelu(nan)", kNan},
      {"gelu_tanh(0.0)", 0.0},
      {"gelu_tanh(1.0)", 0.8411919906082768},
      {"gelu_tanh(-1.0)", -0.15880800939172324},
      {"gelu_tanh(-inf)", 0.0},
      {"gelu_tanh(inf)", kInf},
      {"gelu_tanh(nan)", kNan},
      {"silu(0.0)", 0.0},
      {"silu(1.0)", 0.7310585786300049},
      {"silu(-1.0)", -0.2689414213699951},
      {"silu(-inf)", 0.0},
      {"silu(inf)", kInf},
      {"silu(nan)", kNan},
      // Comparisons.
      {"1.0 == 1.0", true},
      {"0.0 == -0.0", true},
      {"nan == nan", false},
      {"inf == inf", true},
      {"1 == 2", false},
      {"true == true", true},
      {"true == false", false},
      {"1.0 != 1.0", false},
      {"nan != nan", true},
      {"1 != 2", true},
      {"true != false", true},
      {"1.0 < 2.0", true},
      {"nan < 1.0", false},
      {"-inf < inf", true},
      {"-1 < 1", true},
      {"2147483647 < -2147483648", false},
      {"1.0 <= 1.0", true},
      {"nan <= nan", false},
      {"2 <= 1", false},
      {"2.0 > 1.0", true},
      {"1.0 > nan", false},
      {"1 > 1", false},
      {"1.0 >= 1.0", true},
      {"nan >= 1.0", false},
      {"1 >= 2", false},
      // Booleans, selection, casts.
      {"true & false", false},
      {"true & true", true},
      {"false | false", false},
      {"true | false", true},
      {"true ^ true", false},
      {"true ^ false", true},
      {"!true", false},
      {"!false", true},
      {"select(true, 1.0, nan)", 1.0},
      {"select(false, nan, 2.0)", 2.0},
      {"select(true, 1, 2)", 1},
      {"select(false, true, false)", false},
      {"select(true, -inf, 0.0)", -kInf},
      {"f32(7)", 7.0},
      {"f32(16777217)", 16777216.0},
      {"f32(16777219)", 16777220.0},
      {"f32(true)", 1.0},
      {"f32(false)", 0.0},
      {"f32(-0.0)", -0.0},
      {"i32(2.9)", 2},
      {"i32(-2.9)", -2},
      {"i32(nan)", 0},
      {"i32(inf)", INT32_MAX},
      {"i32(-inf)", kLowest},
      {"i32(2147483648.0)", INT32_MAX},
      {"i32(-2147483648.0)", kLowest},
      {"i32(1e20)", INT32_MAX},
      {"i32(2147483520.0)", 2147483520},
      {"i32(true)", 1},
      {"i32(5)", 5},
      {"bool(0.0)", false},
      {"bool(-0.0)", false},
      {"bool(0.5)", true},
      {"bool(nan)", true},
      {"bool(0)", false},
      {"bool(-3)", true},
      {"bool(true)", true},
  };
  return kCases;
}

/// Units in the last place of Real between two numbers; 0 only for the same bits or two NaN.
template <class Real>
double ulps(Real found, Real expected) {
  if (std::isnan(found) || std::isnan(expected)) return std::isnan(found) == std::isnan(expected) ? 0 : kInf;
  if (found == expected) return std::signbit(found) == std::signbit(expected) ? 0 : kInf;
  if (std::isinf(found) || std::isinf(expected) || expected == 0) return kInf;
  const Real one = std::abs(std::nextafter(expected, Real(kInf)) - expected);
  return std::abs(static_cast<double>(found) - static_cast<double>(expected)) / one;
}

template <class Real>
void expect_meaning(const Case& line) {
  const Program program = Program::parse(std::string("let x = ") + line.expression + "\nvalue = f32(x)");
  const NodeId node = program.nodes()[program.value()].args[0];
  const auto found = test::interpret<Real>(program, {})[node];
  SCOPED_TRACE(line.expression);
  switch (program.nodes()[node].type) {
    case Type::kF32:
      ASSERT_TRUE(std::holds_alternative<double>(line.expected));
      // The C library's functions are good to an ulp or two; special values must be exact.
      EXPECT_LE(ulps(found.f, static_cast<Real>(std::get<double>(line.expected))), 2)
          << found.f << " is not " << std::get<double>(line.expected);
      break;
    case Type::kI32:
      ASSERT_TRUE(std::holds_alternative<std::int32_t>(line.expected));
      EXPECT_EQ(found.i, std::get<std::int32_t>(line.expected));
      break;
    case Type::kBool:
      ASSERT_TRUE(std::holds_alternative<bool>(line.expected));
      EXPECT_EQ(found.b, std::get<bool>(line.expected));
      break;
  }
}

TEST(OpMeaning, InFloat32) {
  for (const Case& line : cases()) expect_meaning<float>(line);
}

TEST(OpMeaning, InFloat64) {
  for (const Case& line : cases()) expect_meaning<double>(line);
}

TEST(OpMeaning, EveryOpHasLinesForEachArgumentTypeItTakes) {
  std::set<std::pair<Op, Type>> seen;
  for (const Case& line : cases()) {
    const Program program = Program::parse(std::string("let x = ") + line.expression + "\nvalue = f32(x)");
    const Node& node = program.nodes()[program.nodes()[program.value()].args[0]];
    if (node.arg_count > 0) seen.insert({node.op, program.nodes()[node.args[node.arg_count - 1u]].type});
  }
  for (const ir::OpInfo& row : ir::op_table()) {
    if (row.signature == ir::Signature::kLeaf) continue;
    for (const Type type : {Type::kF32, Type::kI32, Type::kBool}) {
      std::vector<Type> types(static_cast<std::size_t>(row.arity), type);
      if (row.signature == ir::Signature::kSelect) types[0] = Type::kBool;
      std::string why;
      const bool takes = ir::infer_type(row.op, types, &why).has_value();
      EXPECT_EQ(seen.contains({row.op, type}), takes) << row.name << " of " << to_string(type);
    }
  }
}

}  // namespace
}  // namespace scoremod
