#include "backend/unsupported.hpp"

#include <set>
#include <string>

#include <gtest/gtest.h>

namespace scoremod::backend {
namespace {

TEST(Unsupported, HasARowForEachRuleInItsOrder) {
  const auto rules = unsupported_rules();
  for (std::size_t i = 0; i < rules.size(); ++i) EXPECT_EQ(static_cast<std::size_t>(rules[i].rule), i);
  EXPECT_EQ(rules.back().rule, Rule::kBlockScales) << "the last of the enum";
}

TEST(Unsupported, HasAnIdOfItsOwnForEachRule) {
  std::set<std::string> ids;
  for (const RuleInfo& rule : unsupported_rules()) {
    EXPECT_TRUE(ids.insert(rule.id).second) << rule.id;
    EXPECT_FALSE(std::string(rule.meaning).empty());
    EXPECT_FALSE(std::string(rule.remedy).empty());
  }
}

TEST(Unsupported, SaysDirectionTextAndRemedy) {
  UnsupportedReason reason = unsupported(Rule::kDtype, "q is f64");
  EXPECT_EQ(reason.id, "dtype");
  EXPECT_EQ(to_string(reason), "q is f64; cast q, k and v, or use the cpu backend");
  reason.direction = "backward";
  EXPECT_EQ(to_string(reason), "backward: q is f64; cast q, k and v, or use the cpu backend");
  EXPECT_EQ(unsupported(Rule::kDtype, "q is f64", "wait").remedy, "wait");
}

}  // namespace
}  // namespace scoremod::backend
