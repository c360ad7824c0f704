#include <random>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"
#include "scoremod/program.hpp"

#include "support/any_program.hpp"
#include "support/test_seed.hpp"

namespace scoremod::test {
namespace {

TEST(TextRoundTrip, ParsingWhatWasPrintedGivesTheProgramBack) {
  for (int i = 0; i < 2000; ++i) {
    const std::uint64_t seed = test_seed() + static_cast<std::uint64_t>(i);
    const Program program = any_program(seed);
    const std::string text = program.to_string();
    const Program parsed = Program::parse(text);
    ASSERT_EQ(parsed, program) << "seed " << seed << "\n" << text << "\n" << parsed.to_string();
    ASSERT_EQ(parsed.hash(), program.hash()) << "seed " << seed;
    ASSERT_EQ(parsed.to_string(), text) << "seed " << seed;
  }
}

TEST(TextRoundTrip, DifferentProgramsHaveDifferentTextsAndAreUnequal) {
  int different = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t seed = test_seed() + static_cast<std::uint64_t>(i);
    const Program one = any_program(seed);
    const Program other = any_program(seed + 1);
    ASSERT_EQ(one == other, one.to_string() == other.to_string()) << "seed " << seed;
    if (!(one == other)) {
      ++different;
      ASSERT_NE(one.hash(), other.hash()) << "seed " << seed;
    }
  }
  EXPECT_GT(different, 900);
}

/// One random edit: a byte changed, removed, doubled or inserted, or a piece moved.
void mutate(std::string& text, std::mt19937_64& random) {
  constexpr std::string_view kCharacters = "()[]{}+-*/%<>=!&|^,.:;#\n\t 0189eEx%_";
  const std::size_t at = random() % text.size();
  switch (random() % 6) {
    case 0: text[at] = static_cast<char>(random() % 256); break;
    case 1: text.erase(at, 1 + random() % 4); break;
    case 2: text.insert(at, 1, text[at]); break;
    case 3: text.insert(at, 1, kCharacters[random() % kCharacters.size()]); break;
    case 4: text.insert(at, text.substr(random() % text.size(), random() % 20)); break;
    default: {
      static constexpr const char* kWords[] = {" let ",      " value = ",  " keep = ", " operand ", " table ",
                                               " rank ",     "inf",        "nan",      "true",      "score",
                                               "2147483648", "1e999",      "select(",  "%0",        " accumulate ",
                                               " += ",       "d_score = ", "upstream", "f32",       "b"};
      text.insert(at, kWords[random() % std::size(kWords)]);
    }
  }
  if (text.empty()) text = "v";
}

TEST(TextMutation, EditedTextIsAProgramOrARefusalThatNamesThePlace) {
  int accepted = 0;
  int refused = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::uint64_t seed = test_seed() + static_cast<std::uint64_t>(i);
    std::mt19937_64 random(seed);
    std::string text = any_program(seed).to_string();
    for (std::uint64_t edits = 1 + random() % 3; edits > 0; --edits) mutate(text, random);
    try {
      const Program program = Program::parse(text);
      ASSERT_EQ(Program::parse(program.to_string()), program) << "seed " << seed << "\n" << text;
      ++accepted;
    } catch (const Error& error) {
      const std::string message = error.what();
      ASSERT_EQ(error.code(), ErrorCode::kInvalidArgument) << "seed " << seed << "\n" << text << "\n" << message;
      ASSERT_TRUE(message.starts_with("line ")) << "seed " << seed << "\n" << text << "\n" << message;
      ASSERT_TRUE(message.ends_with("^")) << "seed " << seed << "\n" << text << "\n" << message;
      ++refused;
    }
  }
  // Both ways must have been tried in earnest. 132 are accepted on average: 40 are 8 standard deviations less.
  EXPECT_GT(accepted, 40);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace scoremod::test
