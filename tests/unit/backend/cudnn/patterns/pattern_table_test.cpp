#include "backend/cudnn/patterns/pattern_table.hpp"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"

namespace scoremod::backend::cudnn {
namespace {

std::string row(const std::string& pattern, const std::string& setting, const std::string& verdict,
                const std::string& ms = "null") {
  return R"({"pattern": ")" + pattern + R"(", "direction": "forward", "setting": ")" + setting +
         R"(", "architecture": "sm_90", "cudnn": "9.19.0", "verdict": ")" + verdict + R"(", "error": null, "ms": )" +
         ms + "}";
}

PatternTable table(const std::string& rows, RowClass row_class = RowClass::kManyRows) {
  return PatternTable::parse(R"({"results": [)" + rows + "]}", "sm_90", "9.19.0", row_class);
}

TEST(PatternTable, TheWorstVerdictOfAllSettingsCounts) {
  const PatternTable mixed =
      table(row("a", "base", "right") + "," + row("a", "d256", "wrong") + "," + row("b", "base", "right", "0.5") + "," +
            row("c", "base", "crashed") + "," + row("d", "base", "refused"));
  EXPECT_EQ(mixed.find("a", Direction::kForward), PatternVerdict::kWrong);
  EXPECT_EQ(mixed.find("b", Direction::kForward), PatternVerdict::kRight);
  EXPECT_EQ(mixed.milliseconds("b", Direction::kForward), 0.5);
  EXPECT_EQ(mixed.find("c", Direction::kForward), PatternVerdict::kCrashed);
  EXPECT_EQ(mixed.find("d", Direction::kForward), PatternVerdict::kRefused);
  EXPECT_EQ(mixed.find("b", Direction::kBackward), PatternVerdict::kUnknown);
  EXPECT_EQ(mixed.find("never tried", Direction::kForward), PatternVerdict::kUnknown);
}

TEST(PatternTable, ASingleRowIsItsOwnWorld) {
  const std::string rows = row("a", "base", "right") + "," + row("a", "one_row_gqa", "wrong");
  EXPECT_EQ(table(rows).find("a", Direction::kForward), PatternVerdict::kRight);
  EXPECT_EQ(table(rows, RowClass::kOneRow).find("a", Direction::kForward), PatternVerdict::kWrong);
}

TEST(PatternTable, AnExplorersFailureIsNoVerdict) {
  EXPECT_EQ(table(row("a", "base", "not_lowered")).find("a", Direction::kForward), PatternVerdict::kUnknown);
}

TEST(PatternTable, RefusesWhatIsNoTable) {
  for (const char* text : {"", "[]", "{}", R"({"results": [{"pattern": 1}]})", R"({"results": [{}]})"}) {
    EXPECT_THROW(PatternTable::parse(text, "sm_90", "9.19.0", RowClass::kManyRows), Error) << text;
  }
}

TEST(PatternTable, TheShippedTableSpeaksOnlyForWhatItSaw) {
  const PatternTable seen = shipped_pattern_table("sm_90", "9.19.0", RowClass::kManyRows);
  EXPECT_GT(seen.size(), 300u);
  EXPECT_TRUE(seen.verified());
  EXPECT_EQ(seen.seen_on(), "sm_90 with cuDNN 9.19.0");
}

/// The build sums the explorer's rows up; the library has to answer as one that reads all of them.
TEST(PatternTable, ShippedDecisionsAreThoseOfTheRows) {
  const auto compare = [](const PatternTable& rows, const PatternTable& shipped, const std::string& what) {
    ASSERT_GT(rows.size(), 0u) << what;
    ASSERT_EQ(rows.size(), shipped.size()) << what;
    EXPECT_TRUE(shipped.verified()) << what;
    for (const PatternDecision& decision : rows.decisions()) {
      const std::string_view pattern = rows.name(decision);
      EXPECT_EQ(shipped.find(pattern, decision.direction), decision.verdict) << what << pattern;
      EXPECT_EQ(shipped.milliseconds(pattern, decision.direction), decision.milliseconds) << what << pattern;
    }
  };
  std::size_t tables = 0;
  for (const auto& file : std::filesystem::directory_iterator(SCOREMOD_PATTERNS_FOLDER)) {
    const std::string name = file.path().stem();  // sm_90-9.19.0
    const std::string architecture = name.substr(0, name.find('-')), version = name.substr(name.find('-') + 1);
    std::ifstream stream(file.path());
    const std::string json{std::istreambuf_iterator<char>(stream), {}};
    for (const RowClass rows : {RowClass::kManyRows, RowClass::kOneRow}) {
      compare(PatternTable::parse(json, architecture, version, rows),
              shipped_pattern_table(architecture, version, rows), name + ": ");
    }
    ++tables;
  }
  EXPECT_GE(tables, 2u);
}

TEST(PatternTable, AnotherArchitectureGetsPatternsThatAreNotVerified) {
  const PatternTable borrowed = shipped_pattern_table("sm_100", "9.19.0", RowClass::kManyRows);
  EXPECT_EQ(borrowed.size(), shipped_pattern_table("sm_90", "9.19.0", RowClass::kManyRows).size());
  EXPECT_FALSE(borrowed.verified());
  EXPECT_EQ(borrowed.seen_on(), "sm_90 with cuDNN 9.19.0");
}

TEST(PatternTable, AnotherVersionGetsTheNearestOnesPatternsUnverified) {
  for (const char* architecture : {"sm_90", "sm_100"}) {
    const PatternTable borrowed = shipped_pattern_table(architecture, "9.20.0", RowClass::kManyRows);
    EXPECT_EQ(borrowed.seen_on(), "sm_90 with cuDNN 9.19.0");
    EXPECT_FALSE(borrowed.verified());
    EXPECT_EQ(borrowed.find("band.right", Direction::kForward), PatternVerdict::kRight);
    EXPECT_EQ(shipped_pattern_table(architecture, "10.0.0", RowClass::kManyRows).size(), 0u);
  }
}

TEST(PatternTable, TheShippedTableKnowsWhatIsWrong) {
  const PatternTable shipped = shipped_pattern_table("sm_90", "9.19.0", RowClass::kManyRows);
  EXPECT_EQ(shipped.find("band.right", Direction::kForward), PatternVerdict::kRight);
  EXPECT_EQ(shipped.find("direct.gt_q_kv", Direction::kForward), PatternVerdict::kWrong);
  EXPECT_EQ(shipped.find("operand.b111.f32.as_declared", Direction::kForward), PatternVerdict::kWrong);
  EXPECT_EQ(shipped.find("operand.b11k.f32.as_declared", Direction::kForward), PatternVerdict::kRight);
  EXPECT_EQ(shipped.find("operand.b11k.f32.as_declared", Direction::kBackward), PatternVerdict::kWrong);
  EXPECT_EQ(shipped.find("operand.b11k.i32.as_declared", Direction::kBackward), PatternVerdict::kWrong);
  EXPECT_EQ(shipped.find("operand.1111.f32.as_declared", Direction::kBackward), PatternVerdict::kRight);
  EXPECT_EQ(shipped.find("operand.1h11.f32.strided", Direction::kForward), PatternVerdict::kWrong);
  EXPECT_EQ(shipped.find("operand.b11k.bool", Direction::kForward), PatternVerdict::kRefused);
  EXPECT_EQ(shipped.find("operand.1hqk.f32.diagonal", Direction::kForward), PatternVerdict::kRefused);
  EXPECT_EQ(shipped.find("row_vector_uses.2", Direction::kBackward), PatternVerdict::kRight);
  EXPECT_EQ(shipped.find("row_vector_uses.3", Direction::kBackward), PatternVerdict::kRefused);
  EXPECT_EQ(shipped.find("direct.padding_of_queries", Direction::kForward), PatternVerdict::kCrashed);
  EXPECT_EQ(shipped.find("adjoint.unguarded", Direction::kBackward), PatternVerdict::kWrong);
  EXPECT_EQ(shipped.find("direct.ge_q_kv.constant_first", Direction::kForward), PatternVerdict::kCrashed);
}

TEST(PatternTable, EachExploredVersionHasItsOwn) {
  const PatternTable older = shipped_pattern_table("sm_90", "9.19.0", RowClass::kManyRows);
  const PatternTable newer = shipped_pattern_table("sm_90", "9.27.0", RowClass::kManyRows);
  EXPECT_TRUE(newer.verified());
  EXPECT_GT(newer.size(), 200u);
  EXPECT_EQ(newer.find("band.right", Direction::kForward), PatternVerdict::kRight);
  EXPECT_EQ(newer.find("direct.gt_q_kv", Direction::kForward), PatternVerdict::kWrong);
  // A select with the constant first crashes the one and is wrong in the other.
  EXPECT_EQ(older.find("direct.ge_q_kv.constant_first", Direction::kForward), PatternVerdict::kCrashed);
  EXPECT_EQ(newer.find("direct.ge_q_kv.constant_first", Direction::kForward), PatternVerdict::kWrong);
  const PatternTable newest = shipped_pattern_table("sm_90", "9.28.0", RowClass::kManyRows);
  EXPECT_TRUE(newest.verified());
  EXPECT_GT(newest.size(), 200u);
  EXPECT_EQ(newest.find("band.right", Direction::kForward), PatternVerdict::kRight);
}

/// One row with grouped heads is where cuDNN counts keys and heads wrongly.
TEST(PatternTable, TheShippedTableKnowsWhatIsWrongForOneRow) {
  const PatternTable one = shipped_pattern_table("sm_90", "9.19.0", RowClass::kOneRow);
  const PatternTable many = shipped_pattern_table("sm_90", "9.19.0", RowClass::kManyRows);
  for (const char* pattern : {"gen_index.1", "gen_index.3", "operand.bh11.f32", "index_offset.3"}) {
    EXPECT_EQ(one.find(pattern, Direction::kForward), PatternVerdict::kWrong) << pattern;
    EXPECT_EQ(many.find(pattern, Direction::kForward), PatternVerdict::kRight) << pattern;
  }
}

}  // namespace
}  // namespace scoremod::backend::cudnn
