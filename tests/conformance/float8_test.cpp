// FP8 tensors against the dense formula on their scaled values: the oracle to its own rounding, the other backends by
// check(). Faults planted in the FP8 code must be found.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/attention.hpp"
#include "scoremod/problem_buffers.hpp"

#include "base/element.hpp"
#include "check/check_subject.hpp"
#include "check/random_problem.hpp"
#include "compiler/pipeline.hpp"
#include "conformance/conformance.hpp"
#include "conformance/host_calls.hpp"
#include "problem/strided_tensor.hpp"
#include "support/check_report.hpp"
#include "support/dense_attention.hpp"
#include "support/faulty_subject.hpp"
#include "support/problem_for.hpp"
#include "support/refusal.hpp"
#include "support/test_seed.hpp"

namespace scoremod {
namespace {

using Index = std::int64_t;
using problem::TensorRole;

AttentionProblem float8_problem(DType dtype = DType::kE4M3) {
  AttentionProblem problem = test::small_problem();
  for (TensorLayout* tensor : {&problem.q, &problem.k, &problem.v, &problem.o}) tensor->layout = Layout::kBHSD;
  problem.dtype = dtype;
  problem.backward = problem.stats = problem.amax_o = problem.amax_gradients = true;
  return problem;
}

double factor(const ProblemInputs& inputs, const std::string& name) {
  const auto operand = std::ranges::find(inputs.operands, name, &OwnedOperand::name);
  return operand == inputs.operands.end() ? 1 : load_element<double>(operand->bytes.data(), DType::kF32, 0);
}

void set_factor(ProblemInputs& inputs, const std::string& name, double value) {
  const auto operand = std::ranges::find(inputs.operands, name, &OwnedOperand::name);
  ASSERT_NE(operand, inputs.operands.end()) << name;
  store_element(operand->bytes.data(), DType::kF32, 0, value);
}

/// The dense formula on the scaled values of the inputs.
test::DenseResult dense(const AttentionProblem& problem, const ProblemInputs& inputs) {
  const auto read = [&](TensorRole role, const std::vector<std::byte>& bytes, const std::string& name) {
    const problem::StridedTensor tensor = problem::tensor_of("", problem, role);
    std::vector<double> values = test::to_dense(bytes, tensor.dtype, tensor.shape, tensor.strides);
    for (double& value : values) value *= factor(inputs, name);
    return values;
  };
  return test::dense_attention(
      problem,
      {read(TensorRole::kQ, inputs.q, "descale_q"), read(TensorRole::kK, inputs.k, "descale_k"),
       read(TensorRole::kV, inputs.v, "descale_v"), read(TensorRole::kDO, inputs.d_o, "descale_d_o")},
      {});
}

/// Within one rounding of the store.
void expect_near(const std::string& name, DType dtype, const std::vector<double>& found,
                 const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size()) << name;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double smallest = dtype == DType::kE4M3 ? 0x1p-10 : dtype == DType::kE5M2 ? 0x1p-17 : 1e-12;
    ASSERT_NEAR(found[i], expected[i], unit_roundoff(dtype) * std::abs(expected[i]) + smallest) << name << " " << i;
  }
}

double largest_magnitude(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

void expect_same(const AttentionProblem& problem, const ProblemInputs& inputs, const ProblemBuffers& found,
                 test::DenseResult expected) {
  using problem::dtype_of;
  expect_near("amax_o", DType::kF32, test::output_values(found, "amax_o"), {largest_magnitude(expected.o)});
  const DType dtype_o = dtype_of(problem, TensorRole::kO);
  for (double& o : expected.o) o = saturate(dtype_o, o * factor(inputs, "scale_o"));
  expect_near("o", dtype_o, test::output_values(found, "o"), expected.o);
  expect_near("lse", DType::kF32, test::output_values(found, "lse"), expected.lse);
  // They are of gradients that are not yet rounded.
  expect_near("amax_dq", DType::kF32, test::output_values(found, "amax_dq"), {largest_magnitude(expected.dq)});
  expect_near("amax_dk", DType::kF32, test::output_values(found, "amax_dk"), {largest_magnitude(expected.dk)});
  expect_near("amax_dv", DType::kF32, test::output_values(found, "amax_dv"), {largest_magnitude(expected.dv)});
  const DType gradients = dtype_of(problem, TensorRole::kDQ);
  expect_near("dq", gradients, test::output_values(found, "dq"), expected.dq);
  expect_near("dk", gradients, test::output_values(found, "dk"), expected.dk);
  expect_near("dv", gradients, test::output_values(found, "dv"), expected.dv);
}

void expect_backends_conform(const AttentionProblem& problem, const ProblemInputs& inputs) {
  for (const std::string& backend : test::tested_backends()) {
    CheckOptions options;
    options.compile.backend = backend;
    options.inputs = inputs;
    const CheckReport report = check(problem, options);
    EXPECT_TRUE(report.passed()) << test::describe(report);
    EXPECT_NO_THROW(test::output(report, "amax_o"));
    if (problem.amax_gradients) {
      EXPECT_NO_THROW(test::output(report, "amax_dv"));
    }
  }
}

TEST(Float8Problems, AreAttentionOfTheNumbersThatTheyStandFor) {
  for (const DType dtype : {DType::kE4M3, DType::kE5M2}) {
    for (const auto dtype_o : {std::optional<DType>(), std::optional(DType::kF32), std::optional(DType::kE5M2)}) {
      for (const auto dtype_d_o : {std::optional<DType>(), std::optional(DType::kBF16), std::optional(DType::kE5M2)}) {
        AttentionProblem problem = float8_problem(dtype);
        problem.dtype_o = dtype_o;
        problem.dtype_d_o = dtype_d_o;
        problem.dtype_gradients = dtype_o ? std::optional(DType::kF32) : std::nullopt;
        const ProblemInputs inputs = random_inputs(problem);
        expect_same(problem, inputs, test::run_calls(problem, inputs, "reference"), dense(problem, inputs));
        expect_backends_conform(problem, inputs);
      }
    }
  }
}

TEST(Float8Problems, SaturateTheirOutput) {
  for (const DType dtype : {DType::kE4M3, DType::kE5M2}) {
    AttentionProblem problem = float8_problem(dtype);
    problem.backward = problem.amax_gradients = false;
    ProblemInputs inputs = random_inputs(problem);
    set_factor(inputs, "scale_o", 1e6);
    for (const char* backend : {"reference", "cpu"}) {
      const ProblemBuffers found = test::run_calls(problem, inputs, backend);
      const double largest = dtype == DType::kE4M3 ? 448 : 57344;
      EXPECT_EQ(largest_magnitude(test::output_values(found, "o")), largest) << backend;
      EXPECT_LT(test::output_values(found, "amax_o").front(), 10) << backend;
    }
    expect_backends_conform(problem, inputs);
  }
}

TEST(Float8Problems, KeepNanAndSayItInTheAmax) {
  AttentionProblem problem = float8_problem();
  problem.backward = problem.amax_gradients = false;
  ProblemInputs inputs = random_inputs(problem);
  inputs.v[0] = std::byte{0x7f};
  for (const char* backend : {"reference", "cpu"}) {
    const ProblemBuffers found = test::run_calls(problem, inputs, backend);
    EXPECT_TRUE(std::isnan(test::output_values(found, "o").front())) << backend;
    EXPECT_TRUE(std::isnan(test::output_values(found, "amax_o").front())) << backend;
  }
}

TEST(Float8Problems, OfRandomProgramsConform) {
  for (int number = 0; number < 60; ++number) {
    const std::uint64_t seed = test::test_seed() + static_cast<std::uint64_t>(number);
    checking::RandomProblemOptions options;
    options.dtypes = {DType::kE4M3, DType::kE5M2};
    options.few_rows_probability = 0.2;
    options.lengths_probability = options.sink_probability = options.dropout_probability = 0.2;
    options.max_logit_probability = options.ragged_probability = options.paged_probability = 0.2;
    options.gradient_layout_probability = options.output_dtype_probability = 0.2;
    checking::CheckCase made = checking::random_problem(seed, options);
    made.problem.amax_gradients = made.problem.backward && number % 2 == 0;
    made.name = "problem " + std::to_string(number) + " (SCOREMOD_TEST_SEED=" + std::to_string(test::test_seed()) + ")";
    for (const std::string& backend : test::tested_backends()) test::expect_conforms(backend, made);
    if (HasFailure()) return;
  }
}

/// With one key dk is 0, also in the plain evaluation, so o's rounding in 127 rows must fit the band alone. (Problem 57
/// of seed 2467059986 was refused though right.)
TEST(Float8Problems, OfOneKeyConform) {
  checking::CheckCase made;
  AttentionProblem& problem = made.problem;
  problem.seq_q = 127;
  problem.seq_kv = 1;
  problem.dim_qk = problem.dim_v = 3;
  problem.dtype = DType::kE5M2;
  problem.dtype_o = DType::kBF16;
  problem.dtype_gradients = DType::kF16;
  problem.scale = 0.01F;
  problem.backward = problem.stats = true;
  problem.program = Program::parse("value = sigmoid(score) * (sigmoid(score) + 1.5)");
  for (made.seed = 0; made.seed < 40; ++made.seed) {
    made.name = "seed " + std::to_string(made.seed);
    for (const std::string& backend : test::tested_backends()) test::expect_conforms(backend, made);
    if (HasFailure()) return;
  }
}

/// Binds all operands but those of these names.
std::vector<OperandBuffer> without(std::vector<OperandBuffer> operands, const std::string& name) {
  std::erase_if(operands, [&](const OperandBuffer& operand) { return operand.name == name; });
  return operands;
}

TEST(Float8Calls, BindWhatTheProblemAsksFor) {
  const AttentionProblem problem = float8_problem();
  ProblemInputs inputs = random_inputs(problem);
  const Attention attention = Attention::compile(problem);
  ProblemBuffers buffers(problem, buffers_of(inputs));
  for (const char* name : {"descale_q", "descale_k", "descale_v", "scale_o"}) {
    ForwardArgs args = buffers.forward();
    args.operands = without(args.operands, name);
    test::expect_refusal("operand '" + std::string(name) + "' is missing", [&] { attention.forward(args); });
  }
  // The forward does not see d_o.
  ForwardArgs args = buffers.forward();
  args.operands = without(args.operands, "descale_d_o");
  attention.forward(args);
  BackwardArgs backward = buffers.backward();
  backward.operands = without(backward.operands, "descale_d_o");
  test::expect_refusal("operand 'descale_d_o' is missing", [&] { attention.backward(backward); });
  args.amax_o = {};
  test::expect_refusal("'amax_o' is missing", [&] { attention.forward(args); });
  backward = buffers.backward();
  backward.amax_dk = {};
  test::expect_refusal("'amax_dk' is missing", [&] { attention.backward(backward); });

  AttentionProblem other = problem;
  other.amax_o = false;
  other.dtype_o = DType::kBF16;
  other.backward = other.amax_gradients = false;
  ProblemInputs others = random_inputs(other);
  ProblemBuffers other_buffers(other, buffers_of(others));
  args = other_buffers.forward();
  float amax = 0;
  args.amax_o = {&amax, sizeof amax};
  test::expect_refusal("'amax_o': expected no buffer in a problem that was compiled without amax_o, found one",
                       [&] { Attention::compile(other).forward(args); });
  args = other_buffers.forward();
  const float scale = 1;
  args.operands.push_back({"scale_o", {&scale, sizeof scale}});
  test::expect_refusal("'scale_o' is no operand", [&] { Attention::compile(other).forward(args); });
}

TEST(Float8Calls, RefuseFactorsThatAreNone) {
  const AttentionProblem problem = float8_problem();
  const Attention attention = Attention::compile(problem);
  for (const char* name : {"descale_q", "descale_k", "descale_v", "scale_o", "descale_d_o"}) {
    for (const double wrong : {0.0, -1.0, std::numeric_limits<double>::infinity(), std::nan("")}) {
      ProblemInputs inputs = random_inputs(problem);
      set_factor(inputs, name, wrong);
      ProblemBuffers buffers(problem, buffers_of(inputs));
      test::expect_refusal("operand '" + std::string(name) + "': expected a positive finite factor, found",
                           [&] { attention.forward(buffers.forward()); });
      // Before anything was written.
      EXPECT_TRUE(
          std::ranges::all_of(buffers.outputs().front().bytes, [](std::byte byte) { return byte == std::byte{0xff}; }));
    }
  }
}

class Float8NegativeControls : public testing::TestWithParam<DType> {
 protected:
  CheckReport check(const checking::Subject& subject) const {
    return checking::check_subject(compiled_, subject, inputs_, {});
  }
  /// The right implementation with another factor than the call's.
  CheckReport with_factor(const std::string& name, float factor) const {
    checking::Subject subject = right_;
    const auto replace = [name](std::vector<OperandBuffer>& operands, const float* value) {
      for (OperandBuffer& operand : operands) {
        if (operand.name == name) operand.buffer.data = value;
      }
    };
    subject.forward = [&, replace](ForwardArgs args, Buffer workspace) {
      replace(args.operands, &factor);
      right_.forward(args, workspace);
    };
    subject.backward = [&, replace](BackwardArgs args, Buffer workspace) {
      replace(args.operands, &factor);
      right_.backward(args, workspace);
    };
    return check(subject);
  }

  static AttentionProblem checked_problem() {
    AttentionProblem problem = float8_problem(GetParam());
    problem.program = Program::parse("value = 5.0 * tanh(score / 5.0)\nkeep = kv_idx <= q_idx + 2");
    return problem;
  }

  const compiler::CompiledProblem compiled_ = compiler::compile(checked_problem());
  const ProblemInputs inputs_ = random_inputs(compiled_.problem);
  const checking::Subject right_ = test::reference_subject(compiled_);
};

TEST_P(Float8NegativeControls, TheRightImplementationPasses) {
  const CheckReport report = check(right_);
  EXPECT_TRUE(report.passed()) << test::describe(report);
  EXPECT_EQ(report.outputs.size(), 9U);
}

TEST_P(Float8NegativeControls, FactorsThatAreIgnoredAreFound) {
  for (const char* name : {"descale_q", "descale_k"}) {
    const CheckReport report = with_factor(name, 1);
    for (const char* output : {"o", "lse", "dq", "dk"}) EXPECT_FALSE(test::output(report, output).passed()) << output;
  }
  const CheckReport of_v = with_factor("descale_v", 1);
  for (const char* output : {"o", "amax_o", "dq"}) EXPECT_FALSE(test::output(of_v, output).passed()) << output;
  const CheckReport of_o = with_factor("scale_o", 1);
  EXPECT_FALSE(test::output(of_o, "o").passed());
  EXPECT_TRUE(test::output(of_o, "amax_o").passed());
  const CheckReport of_d_o = with_factor("descale_d_o", 1);
  for (const char* output : {"dq", "dk", "dv"}) EXPECT_FALSE(test::output(of_d_o, output).passed()) << output;
}

TEST_P(Float8NegativeControls, TheAmaxOfWhatIsStoredIsFound) {
  const auto scaled = [&](const ForwardArgs& args) {
    *static_cast<float*>(args.amax_o.data) *= static_cast<float>(factor(inputs_, "scale_o"));
  };
  EXPECT_FALSE(test::output(check(test::after_forward(right_, scaled)), "amax_o").passed());
  const auto unwritten = [&](const ForwardArgs& args) {
    std::fill_n(static_cast<std::byte*>(args.amax_o.data), 4, std::byte{0xff});
  };
  EXPECT_FALSE(test::output(check(test::after_forward(right_, unwritten)), "amax_o").passed());
}

TEST_P(Float8NegativeControls, WrongAmaxesOfGradientsAreFound) {
  for (const auto& [name, buffer] :
       {std::pair{"amax_dq", &BackwardArgs::amax_dq}, std::pair{"amax_dk", &BackwardArgs::amax_dk},
        std::pair{"amax_dv", &BackwardArgs::amax_dv}}) {
    const auto changed = [member = buffer](const BackwardArgs& args) {
      *static_cast<float*>((args.*member).data) *= 1.5F;
    };
    EXPECT_FALSE(test::output(check(test::after_backward(right_, changed)), name).passed()) << name;
    const auto unwritten = [member = buffer](const BackwardArgs& args) {
      std::fill_n(static_cast<std::byte*>((args.*member).data), 4, std::byte{0xff});
    };
    EXPECT_FALSE(test::output(check(test::after_backward(right_, unwritten)), name).passed()) << name;
  }
}

/// Half of the numbers are beyond the largest: without saturation they are NaN or infinity.
TEST_P(Float8NegativeControls, MissingSaturationIsFound) {
  AttentionProblem problem = checked_problem();
  problem.backward = problem.amax_gradients = false;
  const compiler::CompiledProblem compiled = compiler::compile(problem);
  ProblemInputs inputs = random_inputs(problem);
  set_factor(inputs, "scale_o", GetParam() == DType::kE4M3 ? 2000 : 250000);
  const checking::Subject subject = test::reference_subject(compiled);
  EXPECT_TRUE(checking::check_subject(compiled, subject, inputs, {}).passed());
  const auto overflow = [&](const ForwardArgs& args) {
    auto* codes = static_cast<std::uint8_t*>(args.o.data);
    const bool has_infinity = GetParam() == DType::kE5M2;
    for (std::size_t i = 0; i < args.o.bytes; ++i) {
      if ((codes[i] & 0x7f) == (has_infinity ? 0x7b : 0x7e)) codes[i] += 1;
    }
  };
  const CheckReport report = checking::check_subject(compiled, test::after_forward(subject, overflow), inputs, {});
  EXPECT_GT(test::output(report, "o").wrong_kind, 10);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Float8NegativeControls, testing::Values(DType::kE4M3, DType::kE5M2));

}  // namespace
}  // namespace scoremod
