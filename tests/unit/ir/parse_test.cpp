#include "ir/parse.hpp"

#include <string>

#include <gtest/gtest.h>

#include "scoremod/program.hpp"

#include "base/pages.hpp"
#include "support/refusal.hpp"

namespace scoremod {
namespace {

/// The message for a bad text; its first line, unless `whole`.
std::string refusal(const std::string& text, bool whole = false) {
  const std::string message = test::refusal([&] { Program::parse(text); });
  return whole ? message : message.substr(0, message.find('\n'));
}

struct Bad {
  const char* text;
  const char* message;
};

TEST(Parse, RefusesBadTextWithItsPlace) {
  const std::vector<Bad> table = {
      {"", "line 1, column 1: a program needs 'value = ...' (the modified score), found none"},
      {"keep = true", "line 1, column 12: a program needs 'value = ...' (the modified score), found none"},
      {"value = ", "line 1, column 9: expected a value, found the end of the statement"},
      {"value score", "line 1, column 7: expected '=' after 'value', found 'score'"},
      {"value = score score", "line 1, column 15: expected the end of the statement or an operator, found 'score'"},
      {"value = (score", "line 1, column 15: expected ')' to close '(', found the end of the statement"},
      {"value = score)", "line 1, column 14: expected the end of the statement or an operator, found ')'"},
      {"value = scores",
       "line 1, column 9: 'scores' has no meaning here: expected score, qk_scale, b, h, q_idx, kv_idx, a function, a "
       "declared "
       "operand or a name given with 'let' before (did you mean 'score'?)"},
      {"value = %3",
       "line 1, column 9: '%3' has no meaning here: expected score, qk_scale, b, h, q_idx, kv_idx, a function, a "
       "declared "
       "operand or a "
       "name given with 'let' before"},
      {"value = score\nvalue = score", "line 2, column 1: 'value' is given twice; keep one"},
      {"value = score\nkeep = true\nkeep = true", "line 3, column 1: 'keep' is given twice; keep one"},
      {"value = q_idx", "line 1, column 9: 'value' must be f32, found i32; convert with f32()"},
      {"value = score; keep = q_idx - kv_idx",
       "line 1, column 23: 'keep' must be bool, found i32; write a comparison, or convert with bool()"},
      {"value = score + q_idx",
       "line 1, column 15: '+' takes two f32 or two i32, found (f32, i32); convert with f32(), i32() or bool()"},
      {"value = f32(q_idx / 2)",
       "line 1, column 19: '/' takes two f32, found (i32, i32); integers divide with '//', or convert with f32()"},
      {"value = tanh(q_idx)",
       "line 1, column 9: 'tanh' takes one f32, found (i32); convert with f32(), i32() or bool()"},
      {"value = tanh()", "line 1, column 9: 'tanh' takes one f32, found ()"},
      {"value = min(score, 1.0, 2.0)", "line 1, column 9: 'min' takes two f32 or two i32, found (f32, f32, f32)"},
      {"value = min(1.0, 1.0, 1.0, 1.0, 1.0)", "line 1, column 9: 'min' takes 2 arguments, found 5"},
      {"value = tanh score", "line 1, column 14: expected '(' after 'tanh', found 'score'"},
      {"value = min(score 1.0)", "line 1, column 19: expected ',' or ')' after an argument, found '1.0'"},
      {"value = min(score,)", "line 1, column 19: expected a value, found ')'"},
      {"value = -(q_idx == 1)",
       "line 1, column 9: '-' takes one f32 or i32, found (bool); convert with f32(), i32() or bool()"},
      {"value = score; keep = !score",
       "line 1, column 23: '!' takes one bool, found (f32); convert with f32(), i32() or bool()"},
      {"value = score; keep = b < h < 3", "line 1, column 29: comparisons do not chain; write 'a < b & b < c'"},
      {"value = score; keep = b == h == 3", "line 1, column 30: comparisons do not chain; write 'a < b & b < c'"},
      {"value = 2147483648", "line 1, column 9: '2147483648' does not fit i32; write a float (2147483648.0)?"},
      {"value = -2147483649", "line 1, column 10: '-2147483649' does not fit i32; write a float (-2147483649.0)?"},
      {"value = 1e39", "line 1, column 9: '1e39' is outside the range of f32"},
      {"value = score @ 2.0", "line 1, column 15: expected a name, a number or an operator, found '@'"},
      {"value = score + .", "line 1, column 17: expected a name, a number or an operator, found '.'"},
      {"value = score + 1.0e", "line 1, column 20: expected the end of the statement or an operator, found 'e'"},
      {"value = score . 2.0", "line 1, column 15: expected a name, a number or an operator, found '.'"},
      {"value = 1.0east", "line 1, column 12: expected the end of the statement or an operator, found 'east'"},
      {"value = score %", "line 1, column 16: expected a value, found the end of the statement"},
      {"value = score + \xc3\xa9", "line 1, column 17: expected a name, a number or an operator, found '\\xc3'"},
      {"val = score",
       "line 1, column 1: expected operand, table, let, value, keep, d_score or accumulate, found 'val'"},
      {"3 = score", "line 1, column 1: expected operand, table, let, value, keep, d_score or accumulate, found '3'"},
      {"let x = 1.0\nlet x = 2.0", "line 2, column 5: 'x' already has a meaning"},
      {"operand x: f32 []\nlet x = 1.0", "line 2, column 5: 'x' already has a meaning"},
      {"let score = 1.0", "line 1, column 5: 'score' is a word of the program language; choose another name"},
      {"let tanh = 1.0", "line 1, column 5: 'tanh' is a word of the program language; choose another name"},
      {"let 3 = 1.0", "line 1, column 5: expected a name, found '3'"},
      {"let x 1.0", "line 1, column 7: expected '=' after the name, found '1.0'"},
      {"let x = x + 1.0",
       "line 1, column 9: 'x' has no meaning here: expected score, qk_scale, b, h, q_idx, kv_idx, a function, a "
       "declared operand "
       "or a "
       "name given with 'let' before"},
      {"operand x f32 []", "line 1, column 11: expected ':' after the operand's name, found 'f32'"},
      {"operand x: f16 []", "line 1, column 12: expected a type (f32, i32 or bool), found 'f16'"},
      {"operand x: f32", "line 1, column 15: expected '[' before the operand's axes, found the end of the statement"},
      {"operand x: f32 [q]", "line 1, column 17: expected an axis (b, h, q_idx or kv_idx), found 'q'"},
      {"operand x: f32 [h, b]", "line 1, column 20: expected the axes in the order b, h, q_idx, kv_idx, each once"},
      {"operand x: f32 [h, h]", "line 1, column 20: expected the axes in the order b, h, q_idx, kv_idx, each once"},
      {"operand x: f32 [b h]", "line 1, column 19: expected ',' between axes, found 'h'"},
      {"operand score: f32 []", "line 1, column 9: operand name 'score' is a word of the program language; rename it"},
      {"operand 2x: f32 []", "line 1, column 9: expected the operand's name, found '2'"},
      {"operand x: f32 []\noperand x: f32 []",
       "line 2, column 9: operand 'x' is declared twice; give each operand its own name"},
      {"let x = 1.0\noperand x: f32 []", "line 2, column 9: 'x' is already the name of a value"},
      {"table t: f32 rank 5", "line 1, column 19: expected a rank of 1 to 4, found '5'"},
      {"table t: f32 rank 0", "line 1, column 19: expected a rank of 1 to 4, found '0'"},
      {"table t: f32 [h]", "line 1, column 14: expected 'rank' and a number after the table's type, found '['"},
      {"table t: f32 rank 1\nvalue = t", "line 2, column 9: table 't' is read with 1 indices: t[...]; found none"},
      {"table t: f32 rank 2\nvalue = t[h]", "line 2, column 9: table 't' has rank 2, found 1 indices"},
      {"table t: f32 rank 1\nvalue = t[score]",
       "line 2, column 9: table 't': index 0 must be i32, found f32; convert with i32()"},
      {"operand x: f32 []\nvalue = x[h]",
       "line 2, column 9: operand 'x' is no table: read it without indices, or declare it as a table"},
      {"value = upstream",
       "line 1, column 17: 'upstream' has a meaning only in a derivative; use it beside d_score or accumulate, or "
       "leave it out"},
      {"value = score\naccumulate y += 1.0", "line 2, column 12: expected a declared operand, found 'y'"},
      {"operand x: i32 []\nvalue = score\naccumulate x += 1.0",
       "line 3, column 12: operand 'x' is i32, not f32: it has no gradient"},
      {"table t: f32 rank 2\nvalue = score\naccumulate t[h] += 1.0",
       "line 3, column 12: table 't' has rank 2, found 1 indices"},
      {"table t: f32 rank 1\nvalue = score\naccumulate t[score] += 1.0",
       "line 3, column 12: table 't': index 0 must be i32, found f32; convert with i32()"},
      {"operand x: f32 []\nvalue = score\naccumulate x = 1.0",
       "line 3, column 14: expected '+=' after what is accumulated, found '='"},
      {"operand x: f32 []\nvalue = score\naccumulate x += 1",
       "line 3, column 17: 'accumulate' must be f32, found i32; convert with f32()"},
  };
  EXPECT_GE(table.size(), 30u);
  for (const Bad& bad : table) EXPECT_EQ(refusal(bad.text), bad.message) << bad.text;
}

TEST(Parse, SaysWhatMayHaveBeenMeant) {
  const std::vector<Bad> table = {
      {"value = score\nkeep = q_idx >= kv_idx && kv_idx < 3", "'&&' is no operator (did you mean '&'?)"},
      {"value = score\nkeep = q_idx >= kv_idx || kv_idx < 3", "'||' is no operator (did you mean '|'?)"},
      {"value = score ** 2.0", "'**' is no operator (did you mean 'pow'?)"},
      {"value = score\nkeep = q_idx >= kv_idx and kv_idx < 3", "found 'and' (did you mean '&'?)"},
      {"value = score\nkeep = (q_idx >= kv_idx or kv_idx < 3)", "found 'or' (did you mean '|'?)"},
      {"value = score\nkeep = not (q_idx >= kv_idx)", "(did you mean '!'?)"},
      {"value = where(q_idx >= kv_idx, score, -inf)", "(did you mean 'select'?)"},
      {"value = score\nkeep = causal", "(did you mean 'q_idx >= kv_idx'?)"},
      {"value = tanhh(score)", "(did you mean 'tanh'?); " SCOREMOD_PAGE("reference/ops") " lists the functions"},
      {"value = acos(score)", "before; " SCOREMOD_PAGE("reference/ops") " lists the functions"},
      {"operand slopes: f32 [h]\nvalue = score * slope", "(did you mean 'slopes'?)"},
      {"let distance = q_idx - kv_idx\nvalue = score + f32(distanse)", "(did you mean 'distance'?)"},
      {"valu = score", "(did you mean 'value'?)"},
      {"value = score + x", "given with 'let' before\n"},
  };
  for (const Bad& bad : table) EXPECT_NE(refusal(bad.text, true).find(bad.message), std::string::npos) << bad.text;
}

TEST(Parse, PointsAtThePlace) {
  EXPECT_EQ(refusal("# a comment\nvalue = score +\t* 2.0\nkeep = true", true),
            "line 2, column 17: expected a value, found '*'\n"
            "  value = score +\t* 2.0\n"
            "                 \t^");
  EXPECT_EQ(refusal("value = (score +\n         q_idx)\r\nkeep = true", true),
            "line 1, column 16: '+' takes two f32 or two i32, found (f32, i32); convert with f32(), i32() or bool()\n"
            "  value = (score +\n"
            "                 ^");
  EXPECT_EQ(refusal("value = q_idx\r\nkeep = true", true),
            "line 1, column 9: 'value' must be f32, found i32; convert with f32()\n"
            "  value = q_idx\n"
            "          ^");
  EXPECT_EQ(refusal("let \xc3\xa9 = 1.0", true).substr(0, 19), "line 1, column 5: e");
  EXPECT_EQ(refusal("value = score \xc3\xa9 1.0 $", true),
            "line 1, column 15: expected a name, a number or an operator, found '\\xc3'\n"
            "  value = score \xc3\xa9 1.0 $\n"
            "                ^");
}

TEST(Parse, CountsCharactersAndNotBytesBeforeThePlace) {
  EXPECT_EQ(refusal("value = # \xc3\xa9\xc3\xa9", true),
            "line 1, column 13: expected a value, found the end of the statement\n"
            "  value = # \xc3\xa9\xc3\xa9\n"
            "              ^");
}

TEST(Parse, ShowsOnlyTheSurroundingsInALongLine) {
  const std::string message = refusal("value = " + std::string(1000, '(') + "score $" + std::string(1000, ' '), true);
  EXPECT_LT(message.size(), 500u);
  EXPECT_NE(message.find("..."), std::string::npos);
  const std::string long_name = refusal("value = " + std::string(100000, 'x'));
  EXPECT_LT(long_name.size(), 300u);
}

TEST(Parse, RefusesWhatWouldRunAway) {
  const auto repeat = [](const std::string& piece, int times) {
    std::string text;
    for (int i = 0; i < times; ++i) text += piece;
    return text;
  };
  EXPECT_NE(refusal("value = " + repeat("(", 100000)).find("nest at most 200 deep"), std::string::npos);
  EXPECT_NE(refusal("value = " + repeat("-", 100000) + "score").find("nest at most 200 deep"), std::string::npos);
  EXPECT_NE(refusal("value = score; keep = " + repeat("!", 100000) + "true").find("nest at most 200 deep"),
            std::string::npos);
  EXPECT_NE(refusal("value = " + repeat("abs(", 100000)).find("nest at most 200 deep"), std::string::npos);
  EXPECT_NE(refusal(std::string((16 << 20) + 1, ' ')).find("at most 16777216 bytes"), std::string::npos);
  std::string operands;
  for (int i = 0; i < 2000; ++i) operands += "operand x" + std::to_string(i) + ": f32 []\n";
  test::expect_refusal(
      "more than 1024 operands", [&] { Program::parse(operands); }, ErrorCode::kUnsupported);
  std::string sum = "value = score";
  for (int i = 0; i < 70000; ++i) sum += " + " + std::to_string(i) + ".0";
  test::expect_refusal(
      "more than 65536 nodes", [&] { Program::parse(sum); }, ErrorCode::kUnsupported);
  EXPECT_NE(refusal("operand " + std::string(65, 'x') + ": f32 []").find("at most 64 characters"), std::string::npos);
}

TEST(Parse, TakesTheTextAsItIsMeant) {
  const auto same = [](const char* one, const char* other) {
    EXPECT_EQ(Program::parse(one), Program::parse(other)) << one;
  };
  same("value = score", "\n\n  value   =\tscore # the score\r\n;;\n");
  same("value = score; keep = true", "keep = true\nvalue = score");
  same("value = score\r\nkeep = true\r\n", "value = score\nkeep = true\n");
  same("value = score + 1.0 * 2.0", "value = score + (1.0 * 2.0)");
  same("value = score - 1.0 - 2.0", "value = (score - 1.0) - 2.0");
  same("value = -score * 2.0", "value = (-score) * 2.0");
  same("value = score; keep = !true & false", "value = score; keep = (!true) & false");
  same("value = score; keep = true | false ^ true & false", "value = score; keep = true | (false ^ (true & false))");
  same("value = score; keep = b + 1 < h & q_idx == 2", "value = score; keep = ((b + 1) < h) & (q_idx == 2)");
  same("value = max(score,\n 1.0\n)", "value = max(score, 1.0)");
  same("let x = 1.5\nlet y = x + x\nvalue = score + y", "value = score + (1.5 + 1.5)");
  same("let %0 = q_idx % 3\nvalue = f32(%0 % %0)", "value = f32((q_idx % 3) % (q_idx % 3))");
  same("let x = 5\nvalue = f32(q_idx %3 % x)", "value = f32((q_idx % 3) % 5)");
  same("value = score + .5 + 5. + 1e0 + 1E+0", "value = score + 0.5 + 5.0 + 1.0 + 1.0");
  same("value = -inf", "value = - inf");
  same("let unused = score * 2.0\nvalue = score", "value = score");
  same(
      "operand y: f32 []\noperand x: f32 []\nvalue = score\naccumulate x += upstream\naccumulate y += 1.0\nd_score = "
      "upstream",
      "operand y: f32 []\noperand x: f32 []\nvalue = score\nd_score = upstream\naccumulate y += 1.0\naccumulate x += "
      "upstream");
  EXPECT_FALSE(Program::parse("value = score - (1.0 - 2.0)") == Program::parse("value = score - 1.0 - 2.0"));
  EXPECT_FALSE(Program::parse("value = -0.0") == Program::parse("value = 0.0"));
}

}  // namespace
}  // namespace scoremod
