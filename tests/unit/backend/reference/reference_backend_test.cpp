#include "backend/reference/reference_backend.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/inputs.hpp"

#include "backend/reference/naive_attention.hpp"
#include "base/element.hpp"
#include "problem/strided_tensor.hpp"
#include "support/dense_attention.hpp"
#include "support/problem_for.hpp"

namespace scoremod::backend {
namespace {

using problem::tensor_of;
using problem::TensorRole;
using test::DenseModifier;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

AttentionProblem small_problem(const std::string& program) {
  AttentionProblem problem = test::small_problem();
  problem.program = Program::parse(program);
  problem.backward = true;
  problem.stats = true;
  return problem;
}

/// The derivative is written by hand, so that these tests stand apart from the compiler.
compiler::CompiledProblem compiled(const AttentionProblem& problem, const std::string& derivative) {
  return {problem, {problem.program, {}}, compiler::CompiledBackward{Program::parse(derivative), {}, {}}, {}};
}

struct Outputs {
  std::vector<double> o, lse, dq, dk, dv;
  std::vector<std::vector<float>> d_operands;
};

std::vector<double> read(const AttentionProblem& problem, TensorRole role, const std::vector<std::byte>& bytes) {
  const problem::StridedTensor tensor = tensor_of("", problem, role);
  return test::to_dense(bytes, problem.dtype, tensor.shape, tensor.strides);
}

/// Runs both plans of the reference backend.
Outputs run(const compiler::CompiledProblem& compiled, const ProblemInputs& inputs, CallParameters parameters = {}) {
  const AttentionProblem& problem = compiled.problem;
  parameters.scale = problem.effective_scale();
  std::vector<const void*> operands;
  std::vector<std::vector<float>> gradients;
  std::vector<void*> d_operands;
  for (const OwnedOperand& operand : inputs.operands) {
    operands.push_back(operand.bytes.data());
    gradients.emplace_back(operand.bytes.size() / sizeof(float));
  }
  for (auto& gradient : gradients) d_operands.push_back(gradient.data());
  std::vector<std::byte> o(inputs.d_o.size()), dq(inputs.q.size()), dk(inputs.k.size()), dv(inputs.v.size());
  std::vector<float> lse(static_cast<std::size_t>(problem::lse_tensor(problem).elements()));
  reference::make_forward_plan(compiled)->execute(
      {inputs.q.data(), inputs.k.data(), inputs.v.data(), operands, o.data(), lse.data()}, parameters, {});
  reference::make_backward_plan(compiled)->execute(
      {inputs.q.data(), inputs.k.data(), inputs.v.data(), nullptr, nullptr, inputs.d_o.data(), operands, dq.data(),
       dk.data(), dv.data(), d_operands},
      parameters, {});
  return {read(problem, TensorRole::kO, o),  {lse.begin(), lse.end()},          read(problem, TensorRole::kQ, dq),
          read(problem, TensorRole::kK, dk), read(problem, TensorRole::kV, dv), gradients};
}

test::DenseResult dense(const AttentionProblem& problem, const ProblemInputs& inputs, const DenseModifier& modifier) {
  return test::dense_attention(problem,
                               {read(problem, TensorRole::kQ, inputs.q), read(problem, TensorRole::kK, inputs.k),
                                read(problem, TensorRole::kV, inputs.v), read(problem, TensorRole::kO, inputs.d_o)},
                               modifier);
}

void expect_near(const char* name, const std::vector<double>& found, const std::vector<double>& expected,
                 double rounding) {
  ASSERT_EQ(found.size(), expected.size()) << name;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (std::isinf(expected[i])) {
      ASSERT_EQ(found[i], expected[i]) << name << " " << i;
      continue;
    }
    // The one rounding of the store, and float64's own rounding in another order.
    ASSERT_NEAR(found[i], expected[i], rounding * std::abs(expected[i]) + 1e-12) << name << " " << i;
  }
}

void expect_same(const Outputs& found, const test::DenseResult& expected, double rounding = 0x1p-24) {
  expect_near("o", found.o, expected.o, rounding);
  expect_near("lse", found.lse, expected.lse, 0x1p-24);
  expect_near("dq", found.dq, expected.dq, rounding);
  expect_near("dk", found.dk, expected.dk, rounding);
  expect_near("dv", found.dv, expected.dv, rounding);
}

TEST(ReferenceBackend, IdentityIsPlainAttentionInEveryLayout) {
  for (const Layout layout : {Layout::kBSHD, Layout::kSBHD, Layout::kBHSD}) {
    AttentionProblem problem = small_problem("value = score");
    problem.q.layout = problem.k.layout = problem.v.layout = problem.o.layout = layout;
    problem.k.strides = Strides{1000, 12, 100, 1};
    const ProblemInputs inputs = random_inputs(problem);
    expect_same(run(compiled(problem, "value = score\nd_score = upstream"), inputs), dense(problem, inputs, {}));
  }
}

TEST(ReferenceBackend, HalfPrecisionIsRoundedOnceOnStore) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    AttentionProblem problem = small_problem("value = score");
    problem.dtype = dtype;
    const ProblemInputs inputs = random_inputs(problem);
    const Outputs found = run(compiled(problem, "value = score\nd_score = upstream"), inputs);
    const test::DenseResult expected = dense(problem, inputs, {});
    for (std::size_t i = 0; i < found.o.size(); ++i) {
      EXPECT_EQ(found.o[i], round_to(dtype, static_cast<float>(expected.o[i])));
    }
  }
}

/// As cuDNN does it. In f16 a small scale then loses gradients that fit without it.
TEST(ReferenceBackend, ThePlainEvaluationRoundsTheGradientOfTheScoresAfterTheScale) {
  AttentionProblem problem = small_problem("value = score");
  problem.dtype = DType::kF16;
  ProblemInputs inputs = random_inputs(problem);
  const problem::StridedTensor k = tensor_of("k", problem, TensorRole::kK);
  k.for_each_offset([&](std::int64_t, std::int64_t at) { store_element(inputs.k.data(), k.dtype, at, 1000.0 + at); });
  const reference::InputTensors tensors{inputs.q.data(), inputs.k.data(), inputs.v.data(), inputs.d_o.data(), {}};
  const CallParameters parameters{0x1p-16, {}, nullptr};
  const auto problem_and_derivative = compiled(problem, "value = score\nd_score = upstream * 0.0001");
  const auto plain = reference::backward<float>(problem_and_derivative, tensors, parameters);
  const auto truth = reference::backward<double>(problem_and_derivative, tensors, parameters);
  for (std::size_t i = 0; i < plain.dq.size(); ++i) EXPECT_EQ(plain.dq[i], 0);
  // More than f16 loses when it stores dq.
  EXPECT_GT(std::abs(*std::ranges::max_element(truth.dq, {}, [](double x) { return std::abs(x); })), 0x1p-24);
}

TEST(ReferenceBackend, ModifierMaskAndDerivative) {
  const AttentionProblem problem =
      small_problem("value = 2.0 * tanh(score) + f32(kv_idx - q_idx)\nkeep = kv_idx <= q_idx + 1");
  const ProblemInputs inputs = random_inputs(problem);
  DenseModifier modifier;
  modifier.value = [](double s, auto, auto, auto q, auto kv) { return 2 * std::tanh(s) + static_cast<double>(kv - q); };
  modifier.slope = [](double s, auto, auto, auto, auto) { return 2 * (1 - std::tanh(s) * std::tanh(s)); };
  modifier.keep = [](auto, auto, auto q, auto kv) { return kv <= q + 1; };
  const Outputs found =
      run(compiled(problem, "let t = tanh(score)\nvalue = score\nd_score = upstream * 2.0 * (1.0 - t * t)"), inputs);
  expect_same(found, dense(problem, inputs, modifier));
}

TEST(ReferenceBackend, OffsetsMoveTheIndicesOfTheProgram) {
  const AttentionProblem problem = small_problem("value = score * f32(q_idx) + f32(b + 2 * h)*f32(kv_idx)/10.0");
  const ProblemInputs inputs = random_inputs(problem);
  DenseModifier modifier;
  modifier.value = [](double s, auto b, auto h, auto q, auto kv) {
    return s * static_cast<double>(q + 30) +
           static_cast<double>(b + 10 + 2 * (h + 20)) * static_cast<double>(kv + 40) / static_cast<double>(10);
  };
  modifier.slope = [](double, auto, auto, auto q, auto) { return static_cast<double>(q + 30); };
  CallParameters parameters;
  parameters.offsets = {10, 20, 30, 40};
  const Outputs found = run(compiled(problem, "value = score\nd_score = upstream * f32(q_idx)"), inputs, parameters);
  expect_same(found, dense(problem, inputs, modifier));
}

TEST(ReferenceBackend, MaskedKeysHaveNoInfluenceWhateverTheyHold) {
  for (const char* program : {"value = score\nkeep = kv_idx != 3", "value = select(kv_idx == 3, -inf, score)"}) {
    const AttentionProblem problem = small_problem(program);
    const compiler::CompiledProblem ready = compiled(problem, "value = score\nd_score = upstream");
    ProblemInputs inputs = random_inputs(problem);
    const Outputs expected = run(ready, inputs);
    for (auto* bytes : {&inputs.k, &inputs.v}) {
      const problem::StridedTensor tensor =
          tensor_of("", problem, bytes == &inputs.k ? TensorRole::kK : TensorRole::kV);
      tensor.for_each_offset([&](std::int64_t number, std::int64_t offset) {
        if (number / tensor.shape[3] % tensor.shape[2] == 3) store_element(bytes->data(), tensor.dtype, offset, NAN);
      });
    }
    const Outputs found = run(ready, inputs);
    EXPECT_EQ(found.o, expected.o);
    EXPECT_EQ(found.lse, expected.lse);
    EXPECT_EQ(found.dq, expected.dq);
    EXPECT_EQ(found.dk, expected.dk);
    EXPECT_EQ(found.dv, expected.dv);
  }
}

TEST(ReferenceBackend, RowWithoutAKeyIsZero) {
  AttentionProblem problem = small_problem("value = score\nkeep = q_idx != 2");
  problem.batch = problem.heads_q = problem.heads_kv = 1;
  ProblemInputs inputs = random_inputs(problem);
  for (std::int64_t d = 0; d < problem.dim_v; ++d)
    store_element(inputs.d_o.data(), DType::kF32, 2 * problem.dim_v + d, NAN);
  const Outputs found = run(compiled(problem, "value = score\nd_score = upstream"), inputs);
  EXPECT_EQ(found.lse[2], -kInfinity);
  for (std::int64_t d = 0; d < problem.dim_v; ++d)
    EXPECT_EQ(found.o[static_cast<std::size_t>(2 * problem.dim_v + d)], 0);
  for (std::int64_t d = 0; d < problem.dim_qk; ++d)
    EXPECT_EQ(found.dq[static_cast<std::size_t>(2 * problem.dim_qk + d)], 0);
  for (const double value : found.dv) EXPECT_TRUE(std::isfinite(value));
}

TEST(ReferenceBackend, InfiniteAndNanScoresMakeTheirRowNan) {
  for (const char* program : {"value = select((q_idx == 1) & (kv_idx == 0), inf, score)",
                              "value = select((q_idx == 1) & (kv_idx == 6), nan, score)"}) {
    const AttentionProblem problem = small_problem(program);
    const Outputs found = run(compiled(problem, "value = score\nd_score = upstream"), random_inputs(problem));
    for (std::size_t row = 0; row < found.lse.size(); ++row) {
      const bool hit = row % 5 == 1;
      EXPECT_EQ(std::isnan(found.lse[row]), hit);
      for (std::size_t d = 0; d < 6; ++d) EXPECT_EQ(std::isnan(found.o[row * 6 + d]), hit) << row;
    }
  }
}

TEST(ReferenceBackend, BroadcastOperandIsReadByAxisAndItsGradientIsSummed) {
  AttentionProblem problem = small_problem("operand t: f32 [h, kv_idx]\nvalue = score * t");
  problem.operands = {{"t", DType::kF32, {4, 7}, {1, 5}}};
  const ProblemInputs inputs = random_inputs(problem);
  const auto entry = [](std::int64_t h, std::int64_t kv) { return static_cast<std::size_t>(h + 5 * kv); };
  const auto t = [&](std::int64_t h, std::int64_t kv) {
    return load_element<double>(inputs.operands[0].bytes.data(), DType::kF32, static_cast<std::int64_t>(entry(h, kv)));
  };
  DenseModifier modifier;
  modifier.value = [&](double s, auto, auto h, auto, auto kv) { return s * t(h, kv); };
  modifier.slope = [&](double, auto, auto h, auto, auto kv) { return t(h, kv); };
  const Outputs found = run(compiled(problem,
                                     "operand t: f32 [h, kv_idx]\nvalue = score\nd_score = upstream * t\n"
                                     "accumulate t += upstream * score"),
                            inputs);
  expect_same(found, dense(problem, inputs, modifier));
  // loss = sum(o * d_o), so the gradient is the difference quotient of that.
  const auto loss = [&](std::int64_t h, std::int64_t kv, double step) {
    DenseModifier moved = modifier;
    moved.value = [&](double s, auto, auto at_h, auto, auto at_kv) {
      return s * (t(at_h, at_kv) + (at_h == h && at_kv == kv ? step : 0));
    };
    const test::DenseResult result = dense(problem, inputs, moved);
    const std::vector<double> d_o = read(problem, TensorRole::kO, inputs.d_o);
    double sum = 0;
    for (std::size_t i = 0; i < d_o.size(); ++i) sum += d_o[i] * result.o[i];
    return sum;
  };
  for (std::int64_t h = 0; h < 4; ++h) {
    for (std::int64_t kv = 0; kv < 7; ++kv) {
      const double expected = (loss(h, kv, 1e-5) - loss(h, kv, -1e-5)) / 2e-5;
      EXPECT_NEAR(found.d_operands[0][entry(h, kv)], expected, 1e-6 * (1 + std::abs(expected)));
    }
  }
}

TEST(ReferenceBackend, TableIndicesAreClampedAndItsGradientIsScattered) {
  AttentionProblem problem = small_problem("table bias: f32 rank 2\nvalue = score + bias[h, kv_idx - q_idx]");
  problem.operands = {{"bias", DType::kF32, {4, 3}, {}}};
  const ProblemInputs inputs = random_inputs(problem);
  const auto entry = [](std::int64_t h, std::int64_t q, std::int64_t kv) {
    return h * 3 + std::clamp<std::int64_t>(kv - q, 0, 2);
  };
  DenseModifier modifier;
  modifier.value = [&](double s, auto, auto h, auto q, auto kv) {
    return s + load_element<double>(inputs.operands[0].bytes.data(), DType::kF32, entry(h, q, kv));
  };
  const Outputs found = run(compiled(problem,
                                     "table bias: f32 rank 2\nvalue = score\nd_score = upstream\n"
                                     "accumulate bias[h, kv_idx - q_idx] += upstream"),
                            inputs);
  expect_same(found, dense(problem, inputs, modifier));
  // A shift of all scores of a row leaves the softmax alone, so each head's contributions cancel.
  for (std::size_t h = 0; h < 4; ++h) {
    double sum = 0, size = 0;
    for (std::size_t i = 0; i < 3; ++i)
      sum += found.d_operands[0][h * 3 + i], size += std::abs(found.d_operands[0][h * 3 + i]);
    EXPECT_GT(size, 0.01);
    EXPECT_NEAR(sum, 0, 1e-5 * size);
  }
}

TEST(NaiveAttention, PlainEvaluationRoundsWhatIsStored) {
  AttentionProblem problem = small_problem("value = score");
  problem.dtype = DType::kBF16;
  const ProblemInputs inputs = random_inputs(problem);
  const compiler::CompiledProblem ready = compiled(problem, "value = score\nd_score = upstream");
  const reference::InputTensors tensors{inputs.q.data(), inputs.k.data(), inputs.v.data(), inputs.d_o.data(), {}};
  CallParameters parameters;
  parameters.scale = problem.effective_scale();
  const auto exact = reference::forward<double>(ready, tensors, parameters);
  const auto plain = reference::forward<float>(ready, tensors, parameters);
  double error = 0, size = 0;
  for (std::size_t i = 0; i < exact.o.size(); ++i) {
    EXPECT_EQ(plain.o[i], round_to(DType::kBF16, plain.o[i]));
    error += std::pow(plain.o[i] - exact.o[i], 2);
    size += std::pow(exact.o[i], 2);
  }
  const double relative = std::sqrt(error / size);
  EXPECT_GT(relative, 0x1p-12);
  EXPECT_LT(relative, 0x1p-7);
}

}  // namespace
}  // namespace scoremod::backend
