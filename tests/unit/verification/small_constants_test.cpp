#include "verification/small_constants.hpp"

#include <functional>
#include <vector>

#include <gtest/gtest.h>

namespace scoremod::verification {
namespace {

std::int64_t nothing(std::int64_t) { return 0; }

Program with(const std::vector<std::int64_t>& constants) {
  std::string text = "value = score\nkeep = kv_idx != 77";
  for (const std::int64_t constant : constants) text += " & kv_idx != " + std::to_string(constant);
  return Program::parse(text);
}

std::vector<std::int64_t> smaller(const std::vector<std::int64_t>& constants) {
  const auto replaced = small_constants(with(constants), [](std::int64_t) { return false; });
  std::vector<std::int64_t> result;
  for (const std::int64_t constant : constants) result.push_back(replaced(constant));
  return result;
}

TEST(SmallConstants, ComeWithinThreeTilesInTheirOrder) {
  using Values = std::vector<std::int64_t>;
  EXPECT_EQ(smaller({512}), Values({141}));
  EXPECT_EQ(smaller({0, 1, 64, 128}), Values({0, 1, 64, 128}));
  EXPECT_EQ(smaller({511, 512, 513}), Values({141, 142, 143}));
  EXPECT_EQ(smaller({512, -512, -300}), Values({205, -205, -141}));
}

TEST(SmallConstants, LeaveWhatLiesBeyondEveryLength) {
  EXPECT_EQ(smaller({1024, -1000000}), std::vector<std::int64_t>({1024, -1000000}));
}

TEST(WithConstants, ReplacesWhatStaysApartAndOfItsKind) {
  const Program program = with({5});
  const auto add = [](std::int64_t value) { return value + 1; };
  const auto replaced = with_constants(program, add);
  ASSERT_TRUE(replaced);
  EXPECT_EQ(replaced->to_string(), Program::parse("value = score\nkeep = kv_idx != 78 & kv_idx != 6").to_string());
  EXPECT_FALSE(with_constants(program, nothing)) << "0 is known to passes";
  EXPECT_FALSE(with_constants(program, [](std::int64_t) { return 9; })) << "two constants would be one";
  EXPECT_FALSE(with_constants(program, [](std::int64_t value) { return -value; })) << "another sign";
}

/// A trial stands for a problem whose mask is cut alike.
TEST(SameStructure, HangsOnEveryMemberOfATerm) {
  AttentionProblem problem;
  problem.program = Program::parse("value = score\nkeep = kv_idx < 5 & q_idx < 7");
  const auto of_terms = [&](const std::vector<masks::MaskTerm>& terms) {
    compiler::CompiledProblem compiled{problem, {problem.program, {}}, {}, {}};
    compiled.forward.mask.terms = terms;
    return compiled;
  };
  masks::MaskTerm term;
  term.kind = masks::MaskKind::kPadding;
  term.node = 3;
  const std::vector<std::function<void(masks::MaskTerm&)>> changes{
      [](masks::MaskTerm& other) { other.kind = masks::MaskKind::kGeneral; },
      [](masks::MaskTerm& other) { other.node = 2; }, [](masks::MaskTerm& other) { other.axis = Axis::kQuery; },
      [](masks::MaskTerm& other) { other.from_start = true; }};
  EXPECT_TRUE(same_structure(of_terms({term}), of_terms({term})));
  EXPECT_FALSE(same_structure(of_terms({term}), of_terms({term, term})));
  for (const auto& change : changes) {
    masks::MaskTerm other = term;
    change(other);
    EXPECT_FALSE(same_structure(of_terms({term}), of_terms({other})));
  }
}

}  // namespace
}  // namespace scoremod::verification
