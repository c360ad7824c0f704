#include "passes/normalize_mask.hpp"

#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "ir/builder.hpp"

namespace scoremod::passes {
namespace {

constexpr const char* kDeclarations =
    "operand slope: f32 [h]\n"
    "operand length: i32 [b]\n"
    "operand pad: bool [b, kv_idx]\n"
    "operand x: f32 [kv_idx]\n";

Program parsed(const std::string& roots) { return Program::parse(kDeclarations + roots); }

struct Rewrite {
  const char* before;
  const char* after;
};

class NormalizeMask : public testing::TestWithParam<Rewrite> {};

TEST_P(NormalizeMask, GivesTheNormalForm) {
  EXPECT_EQ(normalize_mask(parsed(GetParam().before)).to_string(), parsed(GetParam().after).to_string());
}

constexpr Rewrite kHoisted[] = {
    {"value = select(q_idx >= kv_idx, score, -inf)", "value = score\nkeep = q_idx >= kv_idx"},
    {"value = select(kv_idx > q_idx, -inf, score)", "value = score\nkeep = kv_idx <= q_idx"},
    {"value = select(pad, select(q_idx >= kv_idx, score, -inf), -inf)", "value = score\nkeep = q_idx >= kv_idx & pad"},
    {"value = select(pad, -inf, score)\nkeep = q_idx >= kv_idx", "value = score\nkeep = q_idx >= kv_idx & !pad"},
    {"value = select(pad, select(q_idx >= kv_idx, score, -inf), score * 2.0)",
     "value = select(pad, score, score * 2.0)\nkeep = !pad | q_idx >= kv_idx"},
    {"value = select(pad, select(q_idx >= kv_idx, score, -inf), select(q_idx < kv_idx, score, -inf))",
     "value = score\nkeep = select(pad, q_idx >= kv_idx, q_idx < kv_idx)"},
    // Ops that keep -inf whatever else they read.
    {"value = select(pad, score, -inf) + 2.0", "value = score + 2.0\nkeep = pad"},
    {"value = 2.0 + select(pad, score, -inf)", "value = 2.0 + score\nkeep = pad"},
    {"value = select(pad, score, -inf) - f32(q_idx - kv_idx) * 0.5",
     "value = score - f32(q_idx - kv_idx) * 0.5\nkeep = pad"},
    {"value = select(pad, score, -inf) * 0.125", "value = score * 0.125\nkeep = pad"},
    {"value = select(pad, score, -inf) / 8.0", "value = score / 8.0\nkeep = pad"},
    {"value = min(select(pad, score, -inf), 30.0)", "value = min(score, 30.0)\nkeep = pad"},
    {"value = floor(select(pad, score, -inf))", "value = floor(score)\nkeep = pad"},
    {"value = -inf", "value = -inf\nkeep = false"},
};
INSTANTIATE_TEST_SUITE_P(Hoisted, NormalizeMask, testing::ValuesIn(kHoisted));

// Nothing moves if -inf may become something else: inf + -inf and 0 * -inf are NaN, -1 * -inf is inf.
constexpr const char* kUnmoved[] = {
    "value = select(pad, score, -inf) + x",       "value = select(pad, score, -inf) + score",
    "value = select(pad, score, -inf) + inf",     "value = select(pad, score, -inf) + slope * f32(kv_idx)",
    "value = select(pad, score, -inf) + nan",     "value = 2.0 - select(pad, score, -inf)",
    "value = select(pad, score, -inf) * slope",   "value = select(pad, score, -inf) * 0.0",
    "value = select(pad, score, -inf) * -1.0",    "value = select(pad, score, -inf) * 1e-40",
    "value = select(pad, score, -inf) * inf",     "value = select(pad, score, -inf) / -8.0",
    "value = 1.0 / select(pad, score, -inf)",     "value = min(select(pad, score, -inf), score)",
    "value = max(select(pad, score, -inf), 0.0)", "value = tanh(select(pad, score, -inf))",
    "value = exp(select(pad, score, -inf))",      "value = -select(pad, score, -inf)",
    "value = score + select(pad, 0.0, -inf)",     "value = select(pad, score, inf)",
    "value = select(pad, score, -3e38)",
};

TEST(NormalizeMask, MovesNothingThatCouldChangeAValue) {
  for (const char* text : kUnmoved) EXPECT_EQ(normalize_mask(parsed(text)), parsed(text)) << text;
}

constexpr Rewrite kTerms[] = {
    // Negations reach the comparisons, where that is exact.
    {"value = score\nkeep = !(q_idx < kv_idx | pad)", "value = score\nkeep = q_idx >= kv_idx & !pad"},
    {"value = score\nkeep = !!(q_idx < kv_idx)", "value = score\nkeep = q_idx < kv_idx"},
    {"value = score\nkeep = !(q_idx == kv_idx)", "value = score\nkeep = q_idx != kv_idx"},
    {"value = score\nkeep = !(x == 0.0)", "value = score\nkeep = x != 0.0"},
    {"value = score\nkeep = !(x < 0.0)", "value = score\nkeep = !(x < 0.0)"},
    {"value = score\nkeep = !bool(x)", "value = score\nkeep = x == 0.0"},
    {"value = score\nkeep = bool(length)", "value = score\nkeep = length != 0"},
    {"value = score\nkeep = !(pad ^ q_idx > kv_idx)", "value = score\nkeep = !(pad ^ q_idx > kv_idx)"},
    // Selects of bools.
    {"value = score\nkeep = select(pad, q_idx >= kv_idx, false)", "value = score\nkeep = q_idx >= kv_idx & pad"},
    {"value = score\nkeep = select(pad, true, q_idx >= kv_idx)", "value = score\nkeep = pad | q_idx >= kv_idx"},
    {"value = score\nkeep = !select(pad, q_idx >= kv_idx, true)", "value = score\nkeep = q_idx < kv_idx & pad"},
    {"value = score\nkeep = select(pad, q_idx >= kv_idx, q_idx >= kv_idx)", "value = score\nkeep = q_idx >= kv_idx"},
    // Constants and duplicates.
    {"value = score\nkeep = true", "value = score"},
    {"value = score\nkeep = pad | true", "value = score"},
    {"value = score\nkeep = pad & q_idx > 0 & false", "value = score\nkeep = false"},
    {"value = score\nkeep = pad & (q_idx >= kv_idx & pad)", "value = score\nkeep = q_idx >= kv_idx & pad"},
    {"value = score\nkeep = true & (pad & (q_idx >= kv_idx & true))", "value = score\nkeep = q_idx >= kv_idx & pad"},
    // max(x, y) < z is x < z and y < z; max(x, y) > z is no conjunction.
    {"value = score\nkeep = max(q_idx, kv_idx) < length", "value = score\nkeep = kv_idx < length & q_idx < length"},
    {"value = score\nkeep = length >= max(q_idx, kv_idx)", "value = score\nkeep = length >= kv_idx & length >= q_idx"},
    {"value = score\nkeep = max(q_idx, 4) >= kv_idx", "value = score\nkeep = max(q_idx, 4) >= kv_idx"},
};

TEST(NormalizeMask, MakesKeepAConjunctionOfSimpleTerms) {
  for (const Rewrite& row : kTerms) {
    const Program before = normalize_mask(parsed(row.before));
    EXPECT_EQ(before, normalize_mask(parsed(row.after))) << row.before << "\ngave\n" << before.to_string();
    // The row's own order of terms may differ from the canonical one, but it has as many nodes.
    EXPECT_EQ(before.nodes().size(), parsed(row.after).nodes().size()) << row.before;
  }
}

TEST(NormalizeMask, OrdersTermsByStructureAlone) {
  const Program one = parsed("value = score\nkeep = pad & q_idx - kv_idx < 4 & q_idx >= kv_idx & kv_idx < length");
  const Program other =
      parsed("value = score\nkeep = kv_idx < length & (q_idx >= kv_idx & (q_idx - kv_idx < 4 & pad))");
  EXPECT_EQ(normalize_mask(one), normalize_mask(other));
}

TEST(NormalizeMask, GoesThroughVeryDeepPrograms) {
  ir::Builder builder;
  NodeId value = builder.leaf(Op::kScore);
  NodeId keep = builder.make(Op::kGe, {builder.leaf(Op::kQueryIdx), builder.leaf(Op::kKeyIdx)});
  const NodeId condition = keep;
  value = builder.make(Op::kSelect, {condition, value, builder.constant(-std::numeric_limits<float>::infinity())});
  for (int i = 0; i < 2500; ++i) {
    value = builder.make(Op::kAdd, {value, builder.constant(static_cast<float>(i))});
    const NodeId next = builder.make(Op::kLt, {builder.leaf(Op::kKeyIdx), builder.constant(std::int32_t{i})});
    keep = builder.make(Op::kAnd, {keep, builder.make(Op::kNot, {builder.make(Op::kNot, {next})})});
  }
  const Program normal = normalize_mask(builder.finish(value, keep));
  EXPECT_EQ(normalize_mask(normal), normal);
  EXPECT_NE(normal.nodes()[normal.value()].op, Op::kSelect);
}

/// Whether the mask of the scores is found in their sum with a term. It may be only where the term is never infinite:
/// else the sum is NaN where the score is masked.
bool is_found_beside(const std::string& term) {
  const Program program = Program::parse("value = select(kv_idx <= q_idx, score, -inf) + " + term);
  return normalize_mask(program).to_string().find("keep") != std::string::npos;
}

/// Indices are below 2^31, so that these terms are below 9.9e37. A sum of two of them may round to infinity.
constexpr const char* kKeys = "f32(kv_idx) * 4.6e28";
constexpr const char* kQueries = "f32(q_idx) * 4.6e28";

TEST(MasksOfSums, KnowsWhichTermsAreFinite) {
  EXPECT_TRUE(is_found_beside("f32(kv_idx) * 1e20"));
  EXPECT_FALSE(is_found_beside("f32(kv_idx) * 1e20 * 1e20")) << "a product";
  EXPECT_TRUE(is_found_beside(kKeys));
  for (const char* op : {" + ", " - "})
    EXPECT_FALSE(is_found_beside(std::string("(") + kKeys + op + kQueries + ")")) << op;
  for (const char* op : {"min", "max"})
    EXPECT_TRUE(is_found_beside(std::string(op) + "(" + kKeys + ", " + kQueries + ")")) << op;
  EXPECT_FALSE(is_found_beside("select(q_idx < 3, f32(kv_idx), inf)")) << "a constant";
  EXPECT_FALSE(is_found_beside("exp(f32(kv_idx))"));
}

}  // namespace
}  // namespace scoremod::passes
