#include "conformance/ragged_cases.hpp"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "conformance/host_calls.hpp"
#include "support/problem_for.hpp"

namespace scoremod::test {
namespace {

using Index = std::int64_t;

}  // namespace

AttentionProblem ragged_problem(bool q, bool kv) {
  AttentionProblem problem = small_problem();
  problem.batch = 3;
  for (TensorLayout* tensor : {&problem.q, &problem.k, &problem.v, &problem.o}) tensor->layout = Layout::kBHSD;
  if (q) problem.tokens_q = 9;
  if (kv) problem.tokens_kv = 10;
  if (q) problem.q.layout = problem.o.layout = Layout::kTHD;
  if (kv) problem.k.layout = problem.v.layout = Layout::kTHD;
  problem.backward = problem.stats = problem.max_logit = true;
  return problem;
}

ProblemInputs ragged_inputs(const AttentionProblem& problem) {
  ProblemInputs inputs = random_inputs(problem);
  if (problem.tokens_q) set_operand(problem, inputs, "offsets_q", kOffsetsQ);
  if (problem.tokens_kv) set_operand(problem, inputs, "offsets_kv", kOffsetsKv);
  return inputs;
}

Place query_place(const AttentionProblem& p, Index dim) {
  return {p.tokens_q ? kOffsetsQ : std::vector<double>(), p.batch, p.heads_q, p.seq_q, dim};
}
Place key_place(const AttentionProblem& p, Index dim) {
  return {p.tokens_kv ? kOffsetsKv : std::vector<double>(), p.batch, p.heads_kv, p.seq_kv, dim};
}

DenseResult ragged_result(const AttentionProblem& p, const ProblemInputs& inputs, const DenseModifier& modifier) {
  return dense_attention(
      p,
      {query_place(p, p.dim_qk).dense(inputs.q, p.dtype), key_place(p, p.dim_qk).dense(inputs.k, p.dtype),
       key_place(p, p.dim_v).dense(inputs.v, p.dtype), query_place(p, p.dim_v).dense(inputs.d_o, p.dtype)},
      modifier);
}

DenseModifier within_sequences(const AttentionProblem& problem, DenseModifier modifier) {
  const auto length = [](const std::vector<double>& offsets, Index b) {
    const auto at = static_cast<std::size_t>(b);
    return static_cast<Index>(offsets[at + 1] - offsets[at]);
  };
  const auto keep = modifier.keep;
  modifier.keep = [=, ragged_q = problem.tokens_q.has_value(), ragged_kv = problem.tokens_kv.has_value()](
                      Index b, Index h, Index q, Index kv) {
    return (!ragged_q || q < length(kOffsetsQ, b)) && (!ragged_kv || kv < length(kOffsetsKv, b)) && keep(b, h, q, kv);
  };
  return modifier;
}

void expect_rows(const ProblemBuffers& found, const char* name, const Place& place,
                 const std::vector<double>& expected) {
  const auto output = std::ranges::find(found.outputs(), name, &OutputTensor::name);
  ASSERT_NE(output, found.outputs().end()) << name;
  const std::vector<double> values = place.dense(output->bytes, DType::kF32);
  ASSERT_EQ(values.size(), expected.size()) << name;
  for (Index n = 0; n < place.batch * place.heads * place.sequence; ++n) {
    if (place.row(n / place.sequence / place.heads, n / place.sequence % place.heads, n % place.sequence) < 0) continue;
    for (Index d = 0; d < place.dim; ++d) {
      const auto at = static_cast<std::size_t>(n * place.dim + d);
      if (std::isinf(expected[at])) {
        ASSERT_EQ(values[at], expected[at]) << name << " " << at;
      } else {
        ASSERT_NEAR(values[at], expected[at], 0x1p-24 * std::abs(expected[at]) + 1e-12) << name << " " << at;
      }
    }
  }
}

void expect_ragged(const AttentionProblem& p, const ProblemBuffers& found, const DenseResult& expected) {
  expect_rows(found, "o", query_place(p, p.dim_v), expected.o);
  expect_rows(found, "lse", query_place(p, 1), expected.lse);
  expect_rows(found, "max_logit", query_place(p, 1), expected.max_logit);
  expect_rows(found, "dq", query_place(p, p.dim_qk), expected.dq);
  expect_rows(found, "dk", key_place(p, p.dim_qk), expected.dk);
  expect_rows(found, "dv", key_place(p, p.dim_v), expected.dv);
}

}  // namespace scoremod::test
