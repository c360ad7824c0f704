#include <array>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/error.hpp"
#include "scoremod/problem_file.hpp"

namespace scoremod {
namespace {

const std::array<std::string, 3> kSeeds{
    R"({"batch": 1, "heads_q": 2, "seq_q": 4, "dim_qk": 8})",
    R"({"batch": 2, "heads_q": 4, "heads_kv": 2, "seq_q": 5, "seq_kv": 7, "dim_qk": 8, "dim_v": 6, "dtype": "f16",
        "q": {"layout": "BHSD", "strides": {"batch": 160, "head": 40, "sequence": 8, "dim": 1}}, "scale": -1.5e-2,
        "program": ["operand s: f32 [h]", "table t: f32 rank 2", "value = score * s + t[h, q_idx - kv_idx]", "keep = q_idx >= kv_idx"],
        "operands": [{"name": "t", "dtype": "bf16", "shape": [4, 9], "strides": [9, 1]}, {"name": "s"}],
        "backward": true, "stats": false, "seed": 3, "inputs": {"s": {"values": [1, 2, 3, 4]}, "q": {"normal": [0, 1]}}})",
    R"({"batch": 1, "heads_q": 4, "seq_q": 16, "dim_qk": 8,
        "program": {"score_mod": [{"name": "soft_cap", "cap": 30}, "alibi"], "mask_mod": ["causal", {"name": "padding"}]},
        "inputs": {"lengths": {"uniform": [1, 16]}}})"};

/// Pieces that make a mutation more than noise.
const std::array<std::string, 20> kPieces{"{",     "}",    "[",         "]",          ",",       ":",
                                          "\"",    "null", "true",      "-1",         "0",       "9223372036854775808",
                                          "1e999", "1.5",  "\"batch\"", "\"inputs\"", "\\u0000", std::string(1, '\0'),
                                          "\xff",  "/*"};

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  std::string mutate(std::string text) {
    const std::size_t count = 1 + pick(4);
    for (std::size_t i = 0; i < count; ++i) step(&text);
    return text;
  }

  std::size_t pick(std::size_t bound) { return random_() % bound; }

 private:
  void step(std::string* text) {
    const std::size_t at = pick(text->size() + 1);
    const std::size_t length = std::min(pick(20), text->size() - at);
    switch (pick(6)) {
      case 0: text->resize(at); break;
      case 1: text->erase(at, length); break;
      case 2: text->insert(at, kPieces.at(pick(kPieces.size()))); break;
      case 3: text->replace(at, length, kPieces.at(pick(kPieces.size()))); break;
      case 4: text->insert(pick(text->size() + 1), text->substr(at, length)); break;
      default:
        if (at < text->size()) (*text)[at] = static_cast<char>(random_());
    }
  }

  std::mt19937_64 random_;
};

std::uint64_t test_seed() {
  const char* given = std::getenv("SCOREMOD_TEST_SEED");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

/// Whatever the bytes, the outcome is a valid problem or a printable message; nothing else is thrown.
TEST(ParseProblem, MutatedFilesAreReadOrRefusedWithAMessage) {
  const std::uint64_t seed = test_seed();
  std::cout << "SCOREMOD_TEST_SEED=" << seed << "\n";
  Mutator mutator(seed);
  int accepted = 0;
  constexpr int kRounds = 20000;
  for (int round = 0; round < kRounds; ++round) {
    const std::string text = mutator.mutate(kSeeds.at(mutator.pick(kSeeds.size())));
    try {
      const ProblemFile file = parse_problem_file(text);
      ASSERT_EQ(parse_problem(to_json(file.problem)), file.problem) << text;
      ++accepted;
    } catch (const Error& error) {
      const std::string message = error.what();
      ASSERT_EQ(error.code(), ErrorCode::kInvalidArgument) << message << "\n" << text;
      ASSERT_FALSE(message.empty()) << text;
    }
  }
  // Both outcomes must occur, or the mutations test nothing.
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, kRounds);
}

}  // namespace
}  // namespace scoremod
