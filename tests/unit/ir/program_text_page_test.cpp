#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"
#include "scoremod/program.hpp"

namespace scoremod {
namespace {

struct Block {
  std::string kind;
  std::string text;
};

/// The fenced code blocks of docs/reference/program_text.md. `program` holds one program; `refused` holds one, with the
/// first line of its message as a comment on its first line.
std::vector<Block> blocks() {
  std::ifstream file(SCOREMOD_TEST_SOURCE_DIR "/../docs/reference/program_text.md");
  std::vector<Block> found;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("```")) {
      inside = !inside;
      if (inside) found.push_back({line.substr(3), ""});
    } else if (inside) {
      found.back().text += line + "\n";
    }
  }
  return found;
}

TEST(ProgramTextPage, ShowsProgramsThatParseAndRefusalsThatHappen) {
  int programs = 0;
  int refusals = 0;
  for (const Block& block : blocks()) {
    if (block.kind == "program") {
      ++programs;
      EXPECT_NO_THROW(Program::parse(block.text)) << block.text;
    } else if (block.kind == "refused") {
      ++refusals;
      const std::string expected = block.text.substr(2, block.text.find('\n') - 2);
      try {
        Program::parse(block.text);
        ADD_FAILURE() << "accepted:\n" << block.text;
      } catch (const Error& error) {
        const std::string message = error.what();
        EXPECT_EQ(message.substr(0, message.find('\n')), expected);
      }
    }
  }
  EXPECT_GE(programs, 6);
  EXPECT_GE(refusals, 3);
}

}  // namespace
}  // namespace scoremod
