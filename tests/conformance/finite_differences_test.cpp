// The derivative is the one thing that the oracle shares with the backends. Here it is compared, through whole
// attention, with difference quotients of the oracle's forward in float64. The loss is sum(o * d_o), for q, k, v and
// every float operand.

#include <cmath>

#include <gtest/gtest.h>

#include "scoremod/zoo.hpp"

#include "backend/reference/dense_tensor.hpp"
#include "backend/reference/naive_attention.hpp"
#include "check/check_memory.hpp"
#include "check/zoo_cases.hpp"
#include "compiler/pipeline.hpp"
#include "support/problem_for.hpp"

namespace scoremod {
namespace {

namespace reference = backend::reference;
using checking::CheckMemory;
using checking::GuardedBuffer;
using problem::TensorRole;

/// The quotient's step. Inputs are multiples of it, so that moving by it is exact in float32.
constexpr double kStep = 0x1p-10;

class Differences {
 public:
  explicit Differences(const checking::CheckCase& test_case)
      : compiled_(compiler::compile(test_case.problem)),
        inputs_(random_inputs(test_case.problem, {test_case.seed, test_case.fills})),
        memory_(compiled_.problem, inputs_, 0) {
    parameters_.scale = test_case.problem.effective_scale();
    parameters_.offsets = test_case.call.offsets;
    parameters_.dropout_seed = test_case.call.dropout_seed;
    parameters_.dropout_offset = test_case.call.dropout_offset;
    const auto d_o = reference::load_dense<double>(test_case.problem, TensorRole::kO, inputs_.d_o.data());
    d_o_.assign(d_o.begin(), d_o.end());
    for (GuardedBuffer* buffer : read_buffers()) snap(*buffer);
  }

  /// The largest distance of a gradient from its quotient, relative to the largest gradient of the tensor; over all
  /// tensors.
  double largest_error(const compiler::CompiledProblem& compiled) {
    const auto gradient = reference::backward<double>(compiled, memory_.reference_inputs(), parameters_);
    double largest = std::max(
        {error_of(memory_.q, gradient.dq), error_of(memory_.k, gradient.dk), error_of(memory_.v, gradient.dv)});
    for (std::size_t i = 0; i < memory_.operands.size(); ++i) {
      if (is_floating(memory_.operands[i].tensor().dtype)) {
        largest = std::max(largest, error_of(memory_.operands[i], gradient.d_operands[i]));
      }
    }
    return largest;
  }

  const compiler::CompiledProblem& compiled() const { return compiled_; }

 private:
  std::vector<GuardedBuffer*> read_buffers() {
    std::vector<GuardedBuffer*> buffers{&memory_.q, &memory_.k, &memory_.v};
    for (GuardedBuffer& operand : memory_.operands) {
      if (is_floating(operand.tensor().dtype)) buffers.push_back(&operand);
    }
    return buffers;
  }

  static void snap(GuardedBuffer& buffer) {
    buffer.tensor().for_each_offset([&](std::int64_t, std::int64_t offset) {
      const double value = load_element<double>(buffer.data(), DType::kF32, offset);
      store_element(buffer.data(), DType::kF32, offset, std::nearbyint(value / kStep) * kStep);
    });
  }

  double loss() {
    const auto result = reference::forward<double>(compiled_, memory_.reference_inputs(), parameters_);
    double sum = 0;
    for (std::size_t i = 0; i < d_o_.size(); ++i) sum += d_o_[i] * result.o[i];
    return sum;
  }

  /// A quotient of fourth order: its error is that of the fifth derivative times kStep^4.
  double quotient(GuardedBuffer& buffer, std::int64_t offset) {
    const double center = load_element<double>(buffer.data(), DType::kF32, offset);
    const auto at = [&](double steps) {
      store_element(buffer.data(), DType::kF32, offset, center + steps * kStep);
      return loss();
    };
    const double value = (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * kStep);
    store_element(buffer.data(), DType::kF32, offset, center);
    return value;
  }

  double error_of(GuardedBuffer& buffer, const std::vector<double>& gradient) {
    double error = 0, size = 1e-3;
    buffer.tensor().for_each_offset([&](std::int64_t number, std::int64_t offset) {
      const double expected = quotient(buffer, offset);
      error = std::max(error, std::abs(gradient[static_cast<std::size_t>(number)] - expected));
      size = std::max(size, std::abs(expected));
    });
    return error / size;
  }

  compiler::CompiledProblem compiled_;
  ProblemInputs inputs_;
  CheckMemory memory_;
  backend::CallParameters parameters_;
  std::vector<double> d_o_;
};

/// The error of the quotient of fourth order at this step, with scores near 10 and modifiers as curved as the zoo's.
constexpr double kTolerance = 1e-6;

AttentionProblem small_problem() {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = 2;
  problem.heads_kv = 1;
  problem.seq_q = 5;
  problem.seq_kv = 6;
  problem.dim_qk = 4;
  problem.dim_v = 3;
  problem.backward = problem.stats = true;
  return problem;
}

class FiniteDifferences : public ::testing::TestWithParam<std::string> {};

TEST_P(FiniteDifferences, AgreeWithTheGradients) {
  Differences differences(checking::zoo_case({GetParam()}, small_problem(), DType::kF32));
  EXPECT_LT(differences.largest_error(differences.compiled()), kTolerance);
}

std::vector<std::string> entry_names() {
  std::vector<std::string> names;
  for (const zoo::Entry& entry : zoo::entries()) names.push_back(entry.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Zoo, FiniteDifferences, ::testing::ValuesIn(entry_names()),
                         [](const auto& test) { return test.param; });

TEST(FiniteDifferencesOfPrograms, AgreeWithTheGradients) {
  for (const char* text : {"operand t: f32 [b, h]\noperand s: f32 []\nvalue = tanh(score * t) / s + exp(-s * t)",
                           "table x: f32 rank 2\nvalue = score * x[h, kv_idx - q_idx] + x[0, kv_idx % 3] * x[1, 2]",
                           "operand x: f32 [q_idx, kv_idx]\nvalue = gelu(score + x) + silu(score) * sigmoid(x)\n"
                           "keep = kv_idx != q_idx",
                           "operand x: f32 [kv_idx]\nvalue = select(kv_idx > q_idx, score * x, -inf)",
                           "operand x: f32 [h]\nvalue = softplus(score) + log(x) * sqrt(x + 1.0) + sin(score * x)"}) {
    SCOPED_TRACE(text);
    const checking::CheckCase test_case{text, test::problem_for(Program::parse(text), small_problem(), 4)};
    Differences differences(test_case);
    EXPECT_LT(differences.largest_error(differences.compiled()), kTolerance);
  }
}

TEST(FiniteDifferencesOfSinks, AgreeWithTheGradients) {
  for (const Sink sink : {Sink::kOffByOne, Sink::kLearned}) {
    AttentionProblem problem = small_problem();
    problem.program = Program::parse("value = 4.0 * tanh(score / 4.0)\nkeep = kv_idx < q_idx");
    problem.sink = sink;
    Differences differences(checking::CheckCase{to_string(sink), problem});
    EXPECT_LT(differences.largest_error(differences.compiled()), kTolerance);
    // The gradients of attention without the sink.
    compiler::CompiledProblem faulty = differences.compiled();
    faulty.problem.sink = Sink::kNone;
    EXPECT_GT(differences.largest_error(faulty), 0.01);
  }
}

TEST(FiniteDifferencesOfDropout, AgreeWithTheGradients) {
  AttentionProblem problem = small_problem();
  problem.program = Program::parse("operand t: f32 [h]\nvalue = t * tanh(score / 4.0)\nkeep = kv_idx < q_idx + 2");
  problem.operands = {{"t", DType::kF32, {2}, {}}};
  problem.dropout = 0.4f;
  problem.sink = Sink::kLearned;
  checking::CheckCase test_case{"dropout", problem};
  test_case.call.dropout_seed = 5;
  test_case.call.dropout_offset = 6;
  Differences differences(test_case);
  EXPECT_LT(differences.largest_error(differences.compiled()), kTolerance);
  // The gradients of attention without dropout.
  compiler::CompiledProblem faulty = differences.compiled();
  faulty.problem.dropout = 0;
  EXPECT_GT(differences.largest_error(faulty), 0.01);
}

TEST(FiniteDifferencesOfPrograms, FindAnIdentityDerivative) {
  for (const char* name : {"soft_cap", "head_temperature"}) {
    Differences differences(checking::zoo_case({name}, small_problem(), DType::kF32));
    compiler::CompiledProblem faulty = differences.compiled();
    const std::string operands = std::string(name) == "soft_cap" ? "" : "operand temperature: f32 [h]\n";
    faulty.backward->program = Program::parse(operands + "value = score\nd_score = upstream");
    EXPECT_GT(differences.largest_error(faulty), 0.01) << name;
  }
}

}  // namespace
}  // namespace scoremod
