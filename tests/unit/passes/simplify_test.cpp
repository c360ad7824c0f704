// Each rule of simplify: the text before and after, and that both have the same value bit for bit, special values
// included.
#include "passes/simplify.hpp"

#include <set>
#include <string>

#include <gtest/gtest.h>

#include "ir/op_table.hpp"
#include "passes/rewriter.hpp"
#include "support/program_equivalence.hpp"

namespace scoremod {
namespace {

constexpr std::uint64_t kSeeds = 400;

struct Case {
  Type type;
  const char* before;
  const char* after;
};

/// A program whose only root of interest is an expression of this type. Its variables are x, y, z (f32), i, j, k (i32)
/// and s, t, u (bool).
Program program_of(Type type, const std::string& expression) {
  std::string text;
  for (const char* name : {"x", "y", "z"}) text += std::string("operand ") + name + ": f32 []\n";
  for (const char* name : {"i", "j", "k"}) text += std::string("operand ") + name + ": i32 []\n";
  for (const char* name : {"s", "t", "u"}) text += std::string("operand ") + name + ": bool []\n";
  text += "table at: f32 rank 1\n";
  switch (type) {
    case Type::kF32: return Program::parse(text + "value = " + expression);
    // A table's index is compared in full; a cast to f32 would round.
    case Type::kI32: return Program::parse(text + "value = at[" + expression + "]");
    case Type::kBool: return Program::parse(text + "value = score\nkeep = " + expression);
  }
  return {};
}

constexpr auto F = Type::kF32;
constexpr auto I = Type::kI32;
constexpr auto B = Type::kBool;

constexpr Case kCases[] = {
    // Constants fold.
    {F, "2.0 * 3.0 + 1.0", "7.0"},
    {F, "score + exp(0.0) * 0.5", "score + 0.5"},
    {I, "7 // -2 + 2147483647 + 1", "2147483644"},
    {B, "1 < 2 & s", "s"},
    {F, "0.0 / 0.0", "nan"},
    // Constants go right.
    {F, "1.0 + x", "x + 1.0"},
    {I, "1 + i", "i + 1"},
    {F, "2.0 * x", "x * 2.0"},
    {I, "2 * i", "i * 2"},
    {F, "min(2.0, x)", "min(x, 2.0)"},
    {F, "min(0.0, x)", "min(0.0, x)"},
    {I, "min(2, i)", "min(i, 2)"},
    {F, "max(2.0, x)", "max(x, 2.0)"},
    {I, "max(2, i)", "max(i, 2)"},
    {B, "false & s", "false"},
    {B, "true | s", "true"},
    {B, "true ^ s", "!s"},
    {B, "1.0 == x", "x == 1.0"},
    {B, "1 == i", "i == 1"},
    {B, "true == s", "s"},
    {B, "1.0 != x", "x != 1.0"},
    {B, "1 != i", "i != 1"},
    {B, "false != s", "s"},
    {B, "1.0 < x", "x > 1.0"},
    {B, "1 < i", "i > 1"},
    {B, "1.0 <= x", "x >= 1.0"},
    {B, "1 <= i", "i >= 1"},
    {B, "1.0 > x", "x < 1.0"},
    {B, "1 > i", "i < 1"},
    {B, "1.0 >= x", "x <= 1.0"},
    {B, "1 >= i", "i <= 1"},
    // f32 sums.
    {F, "x + -0.0", "x"},
    {F, "x + 0.0", "x + 0.0"},
    {F, "abs(x) + 0.0", "abs(x)"},
    {F, "f32(i) + 0.0", "f32(i)"},
    {F, "x + 1.0 + 0.0", "x + 1.0"},
    {F, "x + 0.0 + 0.0", "x + 0.0"},
    {F, "x - 1.0 + 0.0", "x - 1.0"},
    {F, "x + -1.5", "x - 1.5"},
    {F, "x + -y", "x - y"},
    {F, "-x + y", "y - x"},
    {F, "x - 0.0", "x"},
    {F, "x - -0.0", "x + 0.0"},
    {F, "x - -1.5", "x + 1.5"},
    {F, "x - -y", "x + y"},
    {F, "-0.0 - x", "-x"},
    {F, "0.0 - x", "0.0 - x"},
    {F, "x - x", "x - x"},
    {F, "(x + 1.0) + 2.0", "(x + 1.0) + 2.0"},
    // f32 products.
    {F, "x * 1.0", "x"},
    {F, "x * -1.0", "-x"},
    {F, "x * 0.0", "x * 0.0"},
    {F, "-x * -y", "x * y"},
    {F, "-x * 3.0", "x * -3.0"},
    {F, "x / 1.0", "x"},
    {F, "x / -1.0", "-x"},
    {F, "x / 4.0", "x * 0.25"},
    {F, "x / -0.5", "x * -2.0"},
    {F, "x / 50.0", "x / 50.0"},
    {F, "x / 1e-45", "x / 1e-45"},
    {F, "x / 1.7014118e38", "x / 1.7014118e38"},  // 2^127: the reciprocal is subnormal
    {F, "-x / -y", "x / y"},
    {F, "-x / 3.0", "x / -3.0"},
    {F, "1.0 / x", "reciprocal(x)"},
    {F, "x * 3.0 * 2.0", "x * 3.0 * 2.0"},
    // f32 signs and whole numbers.
    {F, "-(-x)", "x"},
    {F, "-(x * 3.0)", "x * -3.0"},
    {F, "-(x / 3.0)", "x / -3.0"},
    {F, "-(3.0 / x)", "-3.0 / x"},
    {F, "-(x - y)", "-(x - y)"},
    {F, "abs(-x)", "abs(x)"},
    {F, "abs(abs(x))", "abs(x)"},
    {F, "abs(exp(x))", "exp(x)"},
    {F, "abs(sqrt(x))", "abs(sqrt(x))"},
    {F, "sign(sign(x))", "sign(x)"},
    {F, "floor(round(x))", "round(x)"},
    {F, "ceil(f32(i))", "f32(i)"},
    {F, "round(sign(x))", "sign(x)"},
    {F, "relu(relu(x))", "relu(x)"},
    {F, "relu(abs(x))", "abs(x)"},
    // f32 extrema and powers.
    {F, "min(x, x)", "x"},
    {F, "max(x, x)", "x"},
    {F, "min(x, inf)", "x"},
    {F, "min(x, -inf)", "min(x, -inf)"},
    {F, "max(x, -inf)", "x"},
    {F, "min(min(x, 2.0), 1.0)", "min(x, 1.0)"},
    {F, "max(max(x, 2.0), 1.0)", "max(x, 2.0)"},
    {F, "min(min(x, 0.0), -0.0)", "min(min(x, 0.0), -0.0)"},
    {F, "min(min(x, nan), 2.0)", "min(min(x, nan), 2.0)"},
    {F, "min(min(x, 2.0), nan)", "min(min(x, 2.0), nan)"},
    {F, "pow(x, 1.0)", "x"},
    {F, "pow(x, 0.0)", "1.0"},
    {F, "pow(1.0, x)", "1.0"},
    // i32 sums.
    {I, "i + 0", "i"},
    {I, "i + 3 + 4", "i + 7"},
    {I, "i - 3 + 4", "i + 1"},
    {I, "3 - i + 4", "7 - i"},
    {I, "i + 2147483647 + 1", "i + -2147483648"},
    {I, "i + -3", "i - 3"},
    {I, "i + -j", "i - j"},
    {I, "-i + j", "j - i"},
    {I, "i - j + j", "i"},
    {I, "j + (i - j)", "i"},
    {I, "i - 0", "i"},
    {I, "i - i", "0"},
    {I, "0 - i", "-i"},
    {I, "i + 3 - 4", "i - 1"},
    {I, "i - 3 - 4", "i - 7"},
    {I, "4 - i - 4", "-i"},
    {I, "4 - (i + 3)", "1 - i"},
    {I, "4 - (i - 3)", "7 - i"},
    {I, "4 - (3 - i)", "i + 1"},
    {I, "4 - -i", "i + 4"},
    {I, "i - -3", "i + 3"},
    {I, "i - -j", "i + j"},
    {I, "i + j - j", "i"},
    {I, "i + j - i", "j"},
    {I, "i - j - i", "-j"},
    {I, "i - (i - j)", "j"},
    {I, "i - (i + j)", "-j"},
    {I, "i - (j + i)", "-j"},
    {I, "-(-i)", "i"},
    {I, "-(i - j)", "j - i"},
    {I, "-(i + 3)", "-3 - i"},
    {I, "-(i * 3)", "i * -3"},
    // i32 products, quotients, remainders.
    {I, "i * 1", "i"},
    {I, "i * 0", "0"},
    {I, "i * -1", "-i"},
    {I, "i * 3 * 5", "i * 15"},
    {I, "-i * 3", "i * -3"},
    {I, "-i * -j", "i * j"},
    {I, "i // 1", "i"},
    {I, "i // 0", "0"},
    {I, "0 // i", "0"},
    {I, "i // -1", "-i"},
    {I, "i // i", "i // i"},
    {I, "i // 4 // 8", "i // 32"},
    {I, "i // -4 // 8", "i // -4 // 8"},
    {I, "i // 65536 // 65536", "i // 65536 // 65536"},
    {I, "i % 1", "0"},
    {I, "i % -1", "0"},
    {I, "i % 0", "i"},
    {I, "0 % i", "0"},
    {I, "i % i", "0"},
    {I, "i % j % j", "i % j"},
    // i32 extrema and signs.
    {I, "min(i, i)", "i"},
    {I, "max(i, i)", "i"},
    {I, "min(i, 2147483647)", "i"},
    {I, "min(i, -2147483648)", "-2147483648"},
    {I, "max(i, -2147483648)", "i"},
    {I, "max(i, 2147483647)", "2147483647"},
    {I, "min(min(i, 3), 2)", "min(i, 2)"},
    {I, "max(max(i, 3), 2)", "max(i, 3)"},
    {I, "min(i, max(j, i))", "i"},
    {I, "max(min(i, j), i)", "i"},
    {I, "abs(-i)", "abs(i)"},
    {I, "abs(abs(i))", "abs(i)"},
    {I, "sign(sign(i))", "sign(i)"},
    // Booleans.
    {B, "!!s", "s"},
    {B, "!(x == y)", "x != y"},
    {B, "!(x < y)", "!(x < y)"},
    {B, "!(i < j)", "i >= j"},
    {B, "!(i >= j)", "i < j"},
    {B, "s & true", "s"},
    {B, "s | false", "s"},
    {B, "s & s", "s"},
    {B, "s | s", "s"},
    {B, "s & !s", "false"},
    {B, "!s & s", "false"},
    {B, "s | !s", "true"},
    {B, "!s | s", "true"},
    {B, "i < j & i >= j", "false"},
    {B, "x < y | x >= y", "x < y | x >= y"},
    {B, "s & (t & s)", "t & s"},
    {B, "s & (t | s)", "s"},
    {B, "(s | t) | s", "s | t"},
    {B, "s | (t & s)", "s"},
    {B, "s ^ s", "false"},
    {B, "s ^ !s", "true"},
    {B, "s ^ false", "s"},
    {B, "s == true", "s"},
    {B, "s == false", "!s"},
    {B, "s != false", "s"},
    {B, "s != true", "!s"},
    {B, "s == s", "true"},
    {B, "s != s", "false"},
    {B, "s == !s", "false"},
    {B, "s != !s", "true"},
    // Comparisons.
    {B, "i == i", "true"},
    {B, "i != i", "false"},
    {B, "i <= i", "true"},
    {B, "i >= i", "true"},
    {B, "i < i", "false"},
    {B, "i > i", "false"},
    {B, "x < x", "false"},
    {B, "x > x", "false"},
    {B, "x == x", "x == x"},
    {B, "x <= x", "x <= x"},
    {B, "x == nan", "false"},
    {B, "x != nan", "true"},
    {B, "x < nan", "false"},
    {B, "x <= nan", "false"},
    {B, "x > nan", "false"},
    {B, "x >= nan", "false"},
    {B, "f32(s) == 1.0", "s"},
    {B, "i32(s) == 0", "!s"},
    {B, "f32(s) != 0.0", "s"},
    {B, "i32(s) != 0", "s"},
    {B, "f32(s) < 0.5", "!s"},
    {B, "i32(s) < 0", "false"},
    {B, "select(s, 3.0, 1.0) <= 2.0", "!s"},
    {B, "select(s, 3, 1) <= 2", "!s"},
    {B, "f32(s) > 0.5", "s"},
    {B, "i32(s) > 0", "s"},
    {B, "select(s, 3.0, 1.0) >= 0.0", "true"},
    {B, "i32(s) >= 1", "s"},
    {B, "i < -2147483648", "false"},
    {B, "i <= 2147483647", "true"},
    {B, "i > 2147483647", "false"},
    {B, "i >= -2147483648", "true"},
    {B, "i < 2147483647", "i < 2147483647"},
    {B, "i + 3 == 5", "i == 2"},
    {B, "i - 3 == 5", "i == 8"},
    {B, "3 - i == 5", "i == -2"},
    {B, "i - j == 0", "i == j"},
    {B, "i + 3 != 5", "i != 2"},
    {B, "i - j != 0", "i != j"},
    {B, "i + 3 < 5", "i + 3 < 5"},
    {B, "-i == -j", "i == j"},
    {B, "-x == -y", "x == y"},
    {B, "-i != 3", "i != -3"},
    {B, "-x != 3.0", "x != -3.0"},
    {B, "-x < -y", "x > y"},
    {B, "-x <= 1.0", "x >= -1.0"},
    {B, "-x > 1.0", "x < -1.0"},
    {B, "-x >= -y", "x <= y"},
    {B, "-x < 1.0", "x > -1.0"},
    {B, "-x <= -y", "x >= y"},
    {B, "-x > -y", "x < y"},
    {B, "-x >= 1.0", "x <= -1.0"},
    {B, "-x < y", "-x < y"},
    {B, "-x <= y", "-x <= y"},
    {B, "-x > y", "-x > y"},
    {B, "-x >= y", "-x >= y"},
    {B, "-i < -j", "-i < -j"},
    // Selection.
    {F, "select(true, x, y)", "x"},
    {F, "select(false, x, y)", "y"},
    {F, "select(s, x, x)", "x"},
    {F, "select(!s, x, y)", "select(s, y, x)"},
    {F, "select(s, select(s, x, y), z)", "select(s, x, z)"},
    {F, "select(s, x, select(s, y, z))", "select(s, x, z)"},
    {B, "select(s, true, t)", "s | t"},
    {B, "select(s, s, t)", "s | t"},
    {B, "select(s, t, false)", "s & t"},
    {B, "select(s, t, s)", "s & t"},
    {B, "select(s, false, true)", "!s"},
    {F, "select(s, 1.0, 0.0)", "f32(s)"},
    {F, "select(s, 1.0, -0.0)", "select(s, 1.0, -0.0)"},
    {I, "select(s, 1, 0)", "i32(s)"},
    {I, "select(s, 1, 2)", "select(s, 1, 2)"},
    {I, "select(i < j, i, j)", "min(i, j)"},
    {I, "select(i >= j, i, j)", "max(i, j)"},
    {I, "select(i > j, j, i)", "min(j, i)"},
    {F, "select(x < y, x, y)", "select(x < y, x, y)"},
    // Casts.
    {F, "f32(x)", "x"},
    {I, "i32(i)", "i"},
    {B, "bool(s)", "s"},
    {F, "f32(i32(s))", "f32(s)"},
    {I, "i32(f32(s))", "i32(s)"},
    {B, "bool(f32(i))", "bool(i)"},
    {B, "bool(i32(s))", "s"},
    {B, "bool(f32(s))", "s"},
    {I, "i32(f32(i))", "i32(f32(i))"},
    {B, "bool(i32(x))", "bool(i32(x))"},
    {B, "bool(-x)", "bool(x)"},
    {B, "bool(abs(i))", "bool(i)"},
};

TEST(Simplify, Table) {
  for (const Case& one : kCases) {
    const Program before = program_of(one.type, one.before);
    const Program after = passes::simplify(before);
    EXPECT_EQ(after.to_string(), program_of(one.type, one.after).to_string()) << one.before;
    EXPECT_EQ(test::first_difference(before, after, kSeeds), "") << one.before;
    EXPECT_EQ(passes::simplify(after), after) << one.before;
  }
}

TEST(Simplify, TheTableTriesEveryRule) {
  std::set<std::string> fired;
  for (const Case& one : kCases) {
    passes::simplify(program_of(one.type, one.before), [&](const passes::Rule& rule) {
      fired.insert(std::string(rule.name) + " on " + ir::info(rule.op).name + " of " + to_string(rule.argument));
    });
  }
  for (const passes::Rule& rule : passes::rewrite_rules()) {
    const std::string name =
        std::string(rule.name) + " on " + ir::info(rule.op).name + " of " + to_string(rule.argument);
    EXPECT_TRUE(fired.contains(name)) << "add a case for: " << name;
  }
}

TEST(Simplify, KeepsEveryRootOfADerivative) {
  const Program before = Program::parse(
      "table t: f32 rank 2\n"
      "value = score * 1.0\n"
      "keep = !!(q_idx >= kv_idx)\n"
      "d_score = upstream * 1.0\n"
      "accumulate t[q_idx + 0, h] += upstream - 0.0\n"
      "accumulate t[kv_idx, 0 + h] += -(-upstream)\n");
  EXPECT_EQ(passes::simplify(before).to_string(),
            "table t: f32 rank 2\n"
            "value = score\n"
            "keep = q_idx >= kv_idx\n"
            "d_score = upstream\n"
            "accumulate t[q_idx, h] += upstream\n"
            "accumulate t[kv_idx, h] += upstream\n");
}

TEST(Simplify, KeepsOperandsThatAreNoLongerRead) {
  const Program after = passes::simplify(Program::parse("operand n: i32 [b]\nvalue = score + f32(n * 0) * 0.0"));
  EXPECT_EQ(after.operands().size(), 1u);
}

// A long chain takes one pass, and no recursion.
TEST(Simplify, LongChains) {
  std::string text = "let x0 = q_idx\n";
  constexpr int kLength = 20000;
  for (int i = 1; i <= kLength; ++i) text += "let x" + std::to_string(i) + " = x" + std::to_string(i - 1) + " + 1\n";
  text += "value = f32(x" + std::to_string(kLength) + ")";
  EXPECT_EQ(passes::simplify(Program::parse(text)).to_string(), "value = f32(q_idx + 20000)\n");
}

}  // namespace
}  // namespace scoremod
