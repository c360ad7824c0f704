// A learned sink, dropout and a learned additive bias at once, under a mask. Each acts at another place of the softmax,
// and each gradient depends on the others. Compared with the dense formula; the bias' gradient also with its
// differences.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/attention.hpp"
#include "scoremod/check.hpp"
#include "scoremod/problem_buffers.hpp"

#include "base/element.hpp"
#include "conformance/conformance.hpp"
#include "problem/dropout_mask.hpp"
#include "problem/strided_tensor.hpp"
#include "support/check_report.hpp"
#include "support/dense_attention.hpp"
#include "support/problem_for.hpp"

namespace scoremod {
namespace {

using Index = std::int64_t;
using problem::TensorRole;

constexpr float kProbability = 0.25F;

AttentionProblem made_problem() {
  AttentionProblem problem = test::small_problem();
  for (TensorLayout* tensor : {&problem.q, &problem.k, &problem.v, &problem.o}) tensor->layout = Layout::kBHSD;
  problem.backward = problem.stats = true;
  problem.sink = Sink::kLearned;
  problem.dropout = kProbability;
  problem.program = Program::parse(
      "operand bias: f32 [h, q_idx, kv_idx]\nvalue = score + f32(q_idx - kv_idx) + bias\nkeep = kv_idx <= q_idx");
  problem.operands.push_back({"bias", DType::kF32, {problem.heads_q, problem.seq_q, problem.seq_kv}, {}});
  return problem;
}

CallOptions made_call() {
  CallOptions call;
  call.dropout_seed = 12345;
  return call;
}

std::vector<double> floats(const std::vector<std::byte>& bytes) {
  std::vector<double> values;
  for (std::size_t i = 0; i < bytes.size() / sizeof(float); ++i)
    values.push_back(load_element<double>(bytes.data(), DType::kF32, static_cast<Index>(i)));
  return values;
}

class SinkDropoutAndBias : public testing::Test {
 protected:
  const AttentionProblem p_ = made_problem();
  const CallOptions call_ = made_call();
  const ProblemInputs inputs_ = random_inputs(p_);
  const std::vector<double> bias_ = operand("bias"), sink_ = operand("sink");

  std::vector<double> operand(const std::string& name) const {
    return floats(std::ranges::find(inputs_.operands, name, &OwnedOperand::name)->bytes);
  }

  test::DenseResult dense(const std::vector<double>& bias) const {
    const problem::DropoutMask mask(kProbability, call_.dropout_seed, call_.dropout_offset);
    test::DenseModifier modifier;
    modifier.value = [&](double s, Index, Index h, Index q, Index kv) {
      return s + static_cast<double>(q - kv) + bias[static_cast<std::size_t>((h * p_.seq_q + q) * p_.seq_kv + kv)];
    };
    modifier.keep = [](Index, Index, Index q, Index kv) { return kv <= q; };
    modifier.sink = [&](Index h) { return sink_[static_cast<std::size_t>(h)]; };
    modifier.share = [&](Index b, Index h, Index q, Index kv) {
      return mask.keeps(b, h, q, kv) ? 1 / (1 - static_cast<double>(kProbability)) : 0;
    };
    return test::dense_attention(p_, {floats(inputs_.q), floats(inputs_.k), floats(inputs_.v), floats(inputs_.d_o)},
                                 modifier);
  }

  double loss(const std::vector<double>& bias) const {
    const std::vector<double> o = dense(bias).o, d_o = floats(inputs_.d_o);
    double sum = 0;
    for (std::size_t i = 0; i < o.size(); ++i) sum += o[i] * d_o[i];
    return sum;
  }
};

TEST_F(SinkDropoutAndBias, AreTheDenseFormula) {
  CompileOptions options;
  options.backend = "reference";
  const Attention attention = Attention::compile(p_, options);
  ProblemBuffers buffers(p_, buffers_of(inputs_));
  attention.forward(buffers.forward(call_));
  attention.backward(buffers.backward(call_));
  const auto found = [&](const std::string& name) {
    return floats(std::ranges::find(buffers.outputs(), name, &OutputTensor::name)->bytes);
  };
  const test::DenseResult expected = dense(bias_);
  for (const auto& [name, of_name] :
       {std::pair{"o", &expected.o}, std::pair{"lse", &expected.lse}, std::pair{"dq", &expected.dq},
        std::pair{"dk", &expected.dk}, std::pair{"dv", &expected.dv}, std::pair{"d_sink", &expected.d_sink}}) {
    const std::vector<double> values = found(name);
    ASSERT_EQ(values.size(), of_name->size()) << name;
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(values[i], (*of_name)[i], 0x1p-24 * std::abs((*of_name)[i]) + 1e-12) << name << " " << i;
  }
  const std::vector<double> d_bias = found("d_bias");
  ASSERT_EQ(d_bias.size(), bias_.size());
  // A central difference is off by its step squared times a third derivative, which is of the loss' own size here.
  constexpr double kStep = 1e-4;
  std::size_t nonzero = 0;
  for (std::size_t i = 0; i < bias_.size(); ++i) {
    std::vector<double> less = bias_, more = bias_;
    less[i] -= kStep;
    more[i] += kStep;
    const double difference = (loss(more) - loss(less)) / (2 * kStep);
    EXPECT_NEAR(d_bias[i], difference, 10 * kStep * kStep + 0x1p-23 * std::abs(difference)) << i;
    nonzero += std::abs(difference) > 0.01 ? 1 : 0;
  }
  EXPECT_GT(nonzero, bias_.size() / 4);
}

TEST_F(SinkDropoutAndBias, ConformOnEveryBackend) {
  for (const std::string& backend : test::tested_backends()) {
    CheckOptions options;
    options.compile.backend = backend;
    options.inputs = inputs_;
    options.call = call_;
    const CheckReport report = check(p_, options);
    EXPECT_TRUE(report.passed()) << test::describe(report);
  }
}

/// Without any one of the three the others' results are other ones.
TEST_F(SinkDropoutAndBias, TakePartEach) {
  const auto gradients = [&](const AttentionProblem& problem, const ProblemInputs& inputs) {
    CompileOptions options;
    options.backend = "cpu";
    const Attention attention = Attention::compile(problem, options);
    ProblemBuffers buffers(problem, buffers_of(inputs));
    attention.forward(buffers.forward(call_));
    attention.backward(buffers.backward(call_));
    return std::ranges::find(buffers.outputs(), "dq", &OutputTensor::name)->bytes;
  };
  const std::vector<std::byte> expected = gradients(p_, inputs_);
  EXPECT_EQ(gradients(p_, inputs_), expected);
  AttentionProblem undropped = p_;
  undropped.dropout = 0;
  EXPECT_NE(gradients(undropped, inputs_), expected);
  for (const char* name : {"bias", "sink"}) {
    ProblemInputs changed = inputs_;
    const auto operand = std::ranges::find(changed.operands, name, &OwnedOperand::name);
    for (std::size_t i = 0; i < operand->bytes.size() / sizeof(float); ++i)
      store_element(operand->bytes.data(), DType::kF32, static_cast<Index>(i), 0.125 * static_cast<double>(i));
    EXPECT_NE(gradients(p_, changed), expected) << name;
  }
}

}  // namespace
}  // namespace scoremod
