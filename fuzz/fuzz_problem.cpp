// Problem files: whatever is read is written so that it reads back.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "scoremod/problem.hpp"

#include "expect.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  scoremod::AttentionProblem problem;
  if (!scoremod::fuzz::takes([&] { problem = scoremod::parse_problem(json); })) return 0;
  scoremod::fuzz::expect(scoremod::parse_problem(scoremod::to_json(problem)) == problem,
                         "a problem's JSON reads back as the problem");
  return 0;
}
