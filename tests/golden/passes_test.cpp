// The compiler's steps on the programs in golden/passes/*.txt, as text. Each file is an input and the expected text
// after each step that changes it; SCOREMOD_UPDATE_GOLDEN=1 updates the files.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/fail.hpp"
#include "compiler/pipeline.hpp"
#include "support/committed_file.hpp"
#include "support/problem_for.hpp"

namespace scoremod {
namespace {

constexpr const char* kInputHeading = "== input\n";

std::vector<std::filesystem::path> golden_files() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(SCOREMOD_TEST_SOURCE_DIR "/golden/passes")) {
    if (entry.path().extension() == ".txt") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The text between the input's heading and the next one.
std::string input_of(const std::string& golden) {
  const std::size_t start = golden.find(kInputHeading);
  if (start == std::string::npos) return "";
  const std::size_t end = golden.find("\n== ", start);
  return golden.substr(start, end == std::string::npos ? std::string::npos : end + 1 - start).substr(9);
}

AttentionProblem problem_with(const Program& program) {
  AttentionProblem sizes;
  sizes.batch = 2;
  sizes.heads_q = sizes.heads_kv = 4;
  sizes.seq_q = 64;
  sizes.seq_kv = 96;
  sizes.backward = sizes.stats = true;
  return test::problem_for(program, sizes);
}

std::string describe(const masks::MaskClass& mask) {
  std::string text = masks::to_string(mask.kind);
  if (mask.band) {
    const auto end = [](const std::optional<std::int64_t>& value) { return value ? std::to_string(*value) : "none"; };
    text += concat(", band left ", end(mask.band->left), " right ", end(mask.band->right),
                   mask.band->anchor == masks::BandAnchor::kTopLeft ? " top-left" : " bottom-right");
  }
  for (const masks::MaskTerm& term : mask.terms) text += concat(", term ", masks::to_string(term.kind));
  return text + "\n";
}

/// The golden text for an input: the file's text before it, the input, and the program after each step.
std::string found_for(const std::string& golden) {
  const std::string input = input_of(golden);
  std::string text = golden.substr(0, golden.find(kInputHeading)) + kInputHeading + input;
  const Program program = Program::parse(input);
  std::string previous = program.to_string();
  compiler::PipelineOptions options;
  options.on_step = [&](const compiler::StepReport& report) {
    if (report.program == previous) return;
    text += "== " + report.name + "\n" + report.program;
    previous = report.program;
  };
  const auto compiled = compiler::compile(problem_with(program), options);
  return text + "== mask\n" + describe(compiled.forward.mask);
}

class GoldenPasses : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(GoldenPasses, AreAsExpected) {
  const std::string expected = read(GetParam());
  ASSERT_FALSE(input_of(expected).empty()) << GetParam() << ": expected '== input' and a program below it";
  test::expect_committed(GetParam(), found_for(expected));
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenPasses, testing::ValuesIn(golden_files()),
                         [](const auto& file) { return file.param.stem().string(); });

}  // namespace
}  // namespace scoremod
