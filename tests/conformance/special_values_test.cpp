#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "base/element.hpp"
#include "conformance/conformance.hpp"
#include "problem/strided_tensor.hpp"
#include "support/check_report.hpp"

namespace scoremod {
namespace {

using problem::TensorRole;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

AttentionProblem base_problem(const std::string& program, DType dtype = DType::kF32) {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = 2;
  problem.heads_kv = 1;
  problem.seq_q = 70;
  problem.seq_kv = 75;
  problem.dim_qk = 16;
  problem.dim_v = 8;
  problem.dtype = dtype;
  problem.program = Program::parse(program);
  problem.backward = problem.stats = true;
  return problem;
}

/// Writes a value into one row (a query's or a key's) of every batch and head of a tensor.
void set_row(const AttentionProblem& problem, TensorRole role, std::vector<std::byte>& bytes, std::int64_t row,
             float value) {
  const problem::StridedTensor tensor = problem::tensor_of("", problem, role);
  tensor.for_each_offset([&](std::int64_t number, std::int64_t offset) {
    if (number / tensor.shape[3] % tensor.shape[2] == row) store_element(bytes.data(), tensor.dtype, offset, value);
  });
}

class SpecialValues : public ::testing::TestWithParam<std::string> {};

TEST_P(SpecialValues, RowsAndBatchesWithoutAKey) {
  for (const char* keep : {"false", "q_idx != 3", "kv_idx >= q_idx + 10", "(b == 1) & (kv_idx < 5)", "q_idx > 64",
                           "(q_idx < 64) | (kv_idx > 1000)"}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const AttentionProblem problem =
          base_problem(std::string("value = 5.0 * tanh(score / 5.0)\nkeep = ") + keep, dtype);
      test::expect_conforms(GetParam(), {std::string("no_key/") + keep, problem});
    }
  }
}

TEST_P(SpecialValues, WhatIsMaskedHasNoInfluence) {
  for (const char* roots : {"value = score\nkeep = (kv_idx != 9) & (q_idx != 5)",
                            "value = select((kv_idx == 9) | (q_idx == 5), -inf, score)",
                            "value = score * score\nkeep = (kv_idx < 9) & (q_idx < 5)"}) {
    for (const float value : {NAN, kInfinity, -kInfinity}) {
      checking::CheckCase test_case{std::string("masked/") + roots, base_problem(roots)};
      const auto spoil = [&](ProblemInputs& inputs) {
        set_row(test_case.problem, TensorRole::kK, inputs.k, 9, value);
        set_row(test_case.problem, TensorRole::kV, inputs.v, 9, value);
        set_row(test_case.problem, TensorRole::kQ, inputs.q, 5, value);
        set_row(test_case.problem, TensorRole::kO, inputs.d_o, 5, value);
      };
      test::expect_conforms(GetParam(), test_case, spoil);
    }
  }
}

TEST_P(SpecialValues, WhatIsKeptPropagates) {
  const auto cases = {std::pair{TensorRole::kQ, "q"}, std::pair{TensorRole::kK, "k"}, std::pair{TensorRole::kV, "v"},
                      std::pair{TensorRole::kO, "d_o"}};
  // With the large factor most weights underflow: 0 * inf is NaN all the same.
  for (const char* roots : {"value = score", "value = score\nkeep = kv_idx <= q_idx", "value = score * 100.0"}) {
    for (const auto& [role, name] : cases) {
      for (const float value : {NAN, kInfinity, -kInfinity}) {
        checking::CheckCase test_case{std::string("kept/") + name, base_problem(roots)};
        const auto spoil = [&, where = role](ProblemInputs& inputs) {
          std::vector<std::byte>& bytes = where == TensorRole::kQ   ? inputs.q
                                          : where == TensorRole::kK ? inputs.k
                                          : where == TensorRole::kV ? inputs.v
                                                                    : inputs.d_o;
          set_row(test_case.problem, where, bytes, 33, value);
        };
        test::expect_conforms(GetParam(), test_case, spoil);
      }
    }
  }
}

TEST_P(SpecialValues, ScoresThatAreNotFinite) {
  for (const char* value :
       {"select((q_idx == 40) & (kv_idx == 7), inf, score)", "select((q_idx == 40) & (kv_idx == 70), nan, score)",
        "select(kv_idx == 70, nan, score)", "select(q_idx == 69, inf, score)", "select(kv_idx % 3 == 0, -inf, score)",
        "score / 0.0", "score - inf", "log(score - 1000.0)"}) {
    test::expect_conforms(GetParam(), {std::string("score/") + value, base_problem(std::string("value = ") + value)});
  }
}

TEST_P(SpecialValues, LargeAndSmallScores) {
  for (const char* value : {"score * 1000.0", "score + 1e6", "score - 1e6", "score * 1e-30", "score * 0.0",
                            "select(q_idx < kv_idx, -1e30, score)", "select(q_idx < kv_idx, -3e38, score)"}) {
    test::expect_conforms(GetParam(), {std::string("size/") + value, base_problem(std::string("value = ") + value)});
  }
}

INSTANTIATE_TEST_SUITE_P(All, SpecialValues, ::testing::ValuesIn(test::tested_backends()),
                         [](const auto& test) { return test.param; });

/// A backend's answer: supported, unless there is a reason why not.
Support answer_of(const char* backend, const char* reason = nullptr) {
  Support answer;
  answer.backend = backend;
  answer.supported = answer.forward_supported = reason == nullptr;
  if (reason != nullptr) answer.reasons.push_back({"an_id", "", reason, ""});
  return answer;
}

TEST(UnsupportedList, HoldsBackendsToIt) {
  const std::vector<test::Unsupported> list{{"abacus", "lengths/*", "too long"}};
  EXPECT_EQ(test::judge_support(list, answer_of("abacus"), "scale"), "");
  EXPECT_EQ(test::judge_support(list, answer_of("abacus", "it is too long"), "lengths/causal"), "");
  EXPECT_EQ(test::judge_support(list, answer_of("cpu"), "lengths/causal"), "");
  // A refusal that is not in the list, a reason that is not the listed one, and an entry that has become stale.
  EXPECT_NE(test::judge_support(list, answer_of("abacus", "too long"), "scale"), "");
  EXPECT_NE(test::judge_support(list, answer_of("cpu", "too long"), "lengths/causal"), "");
  EXPECT_NE(test::judge_support(list, answer_of("abacus", "no beads"), "lengths/causal"), "");
  EXPECT_NE(test::judge_support(list, answer_of("abacus"), "lengths/causal"), "");
}

}  // namespace
}  // namespace scoremod
