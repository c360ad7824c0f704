// Gradients that are zero, or nearly so, because their terms cancel: in the derivative's program, or over the elements
// that an operand's entry is read at. Their rounding errors are far larger than they are, and differ in each backend.

#include <string>

#include <gtest/gtest.h>

#include "conformance/conformance.hpp"

namespace scoremod {
namespace {

constexpr std::uint64_t kSeeds = 12;

AttentionProblem small_problem(DType dtype, const std::string& program) {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = problem.heads_kv = 2;
  problem.seq_q = problem.seq_kv = 16;
  problem.dim_qk = problem.dim_v = 3;
  problem.dtype = dtype;
  problem.backward = problem.stats = true;
  problem.program = Program::parse(program);
  return problem;
}

void expect_conforms(const std::string& name, const AttentionProblem& problem) {
  for (const std::string& backend : test::tested_backends()) {
    for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
      test::expect_conforms(backend, {name + ", seed " + std::to_string(seed), problem, {}, {}, seed});
    }
  }
}

TEST(Cancellation, InsideTheDerivative) {
  AttentionProblem problem = small_problem(DType::kF32,
                                           "operand x: f32 [q_idx]\n"
                                           "let %0 = sigmoid(f32(kv_idx))\n"
                                           "let %1 = %0 + 0.5\n"
                                           "let %2 = sigmoid(x) + 0.5\n"
                                           "value = (score + (%1 / %2 * %2 * %0 + %1)) * 0.8830428");
  problem.operands = {{"x", DType::kF32, {16}, {}}};
  expect_conforms("a quotient times its divisor", problem);
}

TEST(Cancellation, OverTheKeysOfARow) {
  AttentionProblem problem = small_problem(DType::kBF16,
                                           "operand x: f32 []\n"
                                           "value = (score + f32(q_idx) * x) * 0.005");
  problem.seq_kv = 200;
  problem.operands = {{"x", DType::kBF16, {}, {}}};
  expect_conforms("an operand that is added to whole rows", problem);
}

TEST(Cancellation, OfTheOnlyKey) {
  AttentionProblem problem = small_problem(DType::kF16,
                                           "operand x: f32 [b]\n"
                                           "let %0 = sigmoid(x)\n"
                                           "let %1 = %0 + 0.5\n"
                                           "value = (sigmoid(score) + 0.5) / %1 * %1 - %0 + %0");
  problem.seq_q = 128;
  problem.seq_kv = 1;
  problem.dim_v = 33;
  problem.operands = {{"x", DType::kBF16, {2}, {}}};
  expect_conforms("a weight of one", problem);
}

}  // namespace
}  // namespace scoremod
