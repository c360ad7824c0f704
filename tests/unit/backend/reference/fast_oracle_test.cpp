#include "backend/reference/fast_oracle.hpp"

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "base/fail.hpp"
#include "check/check_memory.hpp"
#include "check/random_problem.hpp"
#include "check/rounding_band.hpp"
#include "compiler/pipeline.hpp"
#include "support/test_seed.hpp"

namespace scoremod::backend::reference {
namespace {

using checking::CheckCase;

/// The moves by rounding in float64, for an f32 problem: the band is first order in the unit roundoff.
constexpr double kFloat64 = 0x1p-53 / 0x1p-24;
/// Bands are roots of sums of squares: of moves below this the squares are 0.
constexpr double kLeastMove = 0x1p-511;

/// Elements that must agree, and did; the others have no bound.
int expect_close(const std::string& what, const std::vector<double>& fast, const std::vector<double>& naive,
                 const std::vector<double>& band) {
  EXPECT_EQ(fast.size(), naive.size()) << what;
  int compared = 0;
  for (std::size_t i = 0; i < naive.size() && i < fast.size(); ++i) {
    if (!std::isfinite(naive[i])) {
      EXPECT_TRUE(std::isnan(naive[i]) ? std::isnan(fast[i]) : fast[i] == naive[i]) << what << " at " << i;
      if (::testing::Test::HasFailure()) return compared;
      continue;
    }
    if (!std::isfinite(band[i])) continue;
    ++compared;
    EXPECT_LE(std::abs(fast[i] - naive[i]), 4 * kFloat64 * (band[i] + kLeastMove))
        << what << " at " << i << ": " << fast[i] << ", expected " << naive[i];
    if (::testing::Test::HasFailure()) return compared;
  }
  return compared;
}

/// Compares everything; returns the number of elements compared. `spoil` changes the inputs first.
int expect_agrees(const std::string& name, const CheckCase& made, int threads,
                  const std::function<void(ProblemInputs&)>& spoil = {}) {
  const compiler::CompiledProblem compiled = compiler::compile(made.problem);
  ProblemInputs inputs = random_inputs(made.problem, {made.seed, made.fills});
  if (spoil) spoil(inputs);
  checking::CheckMemory memory(made.problem, inputs, made.seed);
  const InputTensors tensors = memory.reference_inputs();
  const CallParameters parameters{made.problem.effective_scale(), made.call.offsets, nullptr, made.call.dropout_seed,
                                  made.call.dropout_offset};
  const auto band = checking::rounding_band(compiled, tensors, parameters, {});
  const auto naive = forward<double>(compiled, tensors, parameters);
  const auto fast = fast_forward(compiled, tensors, parameters, threads);
  int compared = expect_close(name + ": o", fast.o, naive.o, band.forward.o);
  compared += expect_close(name + ": lse", fast.lse, naive.lse, band.forward.lse);
  compared += expect_close(name + ": max_logit", fast.max_logit, naive.max_logit, band.forward.max_logit);
  if (!made.problem.backward) return compared;
  const auto exact = backward<double>(compiled, tensors, parameters);
  const auto found = fast_backward(compiled, tensors, parameters, threads);
  compared += expect_close(name + ": dq", found.dq, exact.dq, band.backward.dq);
  compared += expect_close(name + ": dk", found.dk, exact.dk, band.backward.dk);
  compared += expect_close(name + ": dv", found.dv, exact.dv, band.backward.dv);
  for (std::size_t i = 0; i < exact.d_operands.size(); ++i) {
    compared += expect_close(concat(name, ": operand ", i), found.d_operands[i], exact.d_operands[i],
                             band.backward.d_operands[i]);
  }
  return compared;
}

TEST(FastOracle, AgreesWithTheNaiveOneOnRandomProblems) {
  constexpr int kProblems = 60;
  int compared = 0;
  for (std::uint64_t i = 0; i < kProblems && !HasFailure(); ++i) {
    checking::RandomProblemOptions options;
    options.dtypes = {DType::kF32};
    options.shifted_value_probability = 0.2;
    options.row_class_probability = 0.3;
    options.few_rows_probability = 0.2;
    options.lengths_probability = options.sink_probability = 0.3;
    options.dropout_probability = options.max_logit_probability = 0.2;
    const CheckCase made = random_problem(test::test_seed() + i, options);
    compared += expect_agrees(concat("problem ", i, " of seed ", test::test_seed()), made, i % 2 == 0 ? 1 : 4);
  }
  EXPECT_GT(compared, 1000 * kProblems);
}

CheckCase made_of(const std::string& program, std::int64_t seq_q, std::int64_t seq_kv) {
  CheckCase made;
  AttentionProblem& problem = made.problem;
  problem.batch = 2;
  problem.heads_q = 4;
  problem.heads_kv = 2;
  problem.seq_q = seq_q;
  problem.seq_kv = seq_kv;
  problem.dim_qk = 5;
  problem.dim_v = 9;
  problem.backward = problem.stats = true;
  problem.program = Program::parse(program);
  return made;
}

TEST(FastOracle, CrossesTheBordersOfBlocksAndStrips) {
  for (const std::int64_t seq_q : {1, 32, 33}) {
    for (const std::int64_t seq_kv : {1, 256, 257}) {
      expect_agrees(
          concat(seq_q, " x ", seq_kv),
          made_of("value = tanh(score) * f32(q_idx % 7) - f32(kv_idx % 5)\nkeep = q_idx * 9 >= kv_idx", seq_q, seq_kv),
          3);
    }
  }
}

/// Seed 1566607825 drew such a gelu: dq was 2e-172.
TEST(FastOracle, AgreesWhereGradientsHaveNoSquares) {
  expect_agrees("a gelu far below zero", made_of("value = (score + 1.0) * gelu(f32(kv_idx - 30))", 4, 3), 1);
}

TEST(FastOracle, KeepsOutWhatMaskedKeysAndQueriesHold) {
  for (const char* program : {"value = score\nkeep = (kv_idx != 7) & (q_idx != 5)",
                              "value = select((kv_idx == 7) | (q_idx == 5), -inf, score * score)",
                              // Kept, they spread as the naive oracle spreads them.
                              "value = score\nkeep = kv_idx <= q_idx", "value = score * 100.0"}) {
    for (const float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      const CheckCase made = made_of(program, 40, 50);
      // In BSHD a sequence index is a block of heads times dims.
      const auto poison = [&](std::vector<std::byte>& tensor, std::int64_t seq, std::int64_t row_floats,
                              std::int64_t row) {
        for (std::int64_t b = 0; b < 2; ++b) {
          for (std::int64_t i = 0; i < row_floats; ++i)
            std::memcpy(tensor.data() + ((b * seq + row) * row_floats + i) * 4, &value, 4);
        }
      };
      expect_agrees(concat(program, " with ", value), made, 2, [&](ProblemInputs& inputs) {
        poison(inputs.k, 50, 2 * 5, 7);
        poison(inputs.v, 50, 2 * 9, 7);
        poison(inputs.q, 40, 4 * 5, 5);
        poison(inputs.d_o, 40, 4 * 9, 5);
      });
    }
  }
}

TEST(FastOracle, TakesEveryOp) {
  for (const char* value :
       {"erf(score) + gelu(score) + gelu_tanh(score) + silu(score) + softplus(score) + relu(score)",
        "exp2(score) + expm1(score) + log1p(abs(score)) + rsqrt(abs(score) + 1.0) + sqrt(abs(score))",
        "sin(score) + cos(score) + tan(score * 0.1) + sigmoid(score) + log(abs(score) + 1.0) + reciprocal(score + "
        "99.0)",
        "min(score, 1.0) + max(score, -1.0) + sign(score) + floor(score) + ceil(score) + round(score) - -score",
        "pow(abs(score) + 1.0, 0.5) + score % 2.5 + f32(kv_idx // 3 * 2 % 5 - abs(q_idx - kv_idx)) / 8.0",
        "select((q_idx < kv_idx) ^ !(b == h) | (score > 0.5), f32(i32(score)), f32(bool(kv_idx)) + exp(-score))"}) {
    expect_agrees(value, made_of(std::string("value = ") + value, 12, 40), 1);
  }
}

}  // namespace
}  // namespace scoremod::backend::reference
