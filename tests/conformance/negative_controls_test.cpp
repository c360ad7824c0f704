// A checker that accepts everything would make every other test here worthless. Each test plants one fault in an
// otherwise right implementation and expects the checker to find it, in every dtype.

#include <cstring>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "base/element.hpp"
#include "check/check_subject.hpp"
#include "compiler/pipeline.hpp"
#include "problem/strided_tensor.hpp"
#include "support/check_report.hpp"
#include "support/faulty_subject.hpp"

namespace scoremod {
namespace {

using checking::Subject;
using problem::StridedTensor;
using problem::TensorRole;

constexpr const char* kOperands = "operand bias: f32 [h, q_idx, kv_idx]\ntable slope: f32 rank 1\n";
constexpr const char* kValue = "value = 6.0 * tanh((score + bias) / 6.0) + slope[h] * f32(kv_idx - q_idx) / 8.0\n";
constexpr const char* kKeep = "keep = kv_idx <= q_idx + 7\n";

AttentionProblem checked_problem(DType dtype) {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = 4;
  problem.heads_kv = 2;
  problem.seq_q = 33;
  problem.seq_kv = 40;
  problem.dim_qk = 16;
  problem.dim_v = 24;
  problem.dtype = dtype;
  problem.backward = problem.stats = true;
  // A gap of two elements after each row of every tensor.
  problem.q.strides = Strides{33 * 4 * 18, 18, 4 * 18, 1};
  problem.k.strides = Strides{40 * 2 * 18, 18, 2 * 18, 1};
  problem.v.strides = Strides{40 * 2 * 26, 26, 2 * 26, 1};
  problem.o.strides = Strides{33 * 4 * 26, 26, 4 * 26, 1};
  problem.program = Program::parse(std::string(kOperands) + kValue + kKeep);
  problem.operands = {{"bias", DType::kF32, {4, 33, 40}, {33 * 42, 42, 1}}, {"slope", dtype, {4}, {}}};
  return problem;
}

void fill(const StridedTensor& tensor, const Buffer& buffer, double value) {
  tensor.for_each_offset(
      [&](std::int64_t, std::int64_t offset) { store_element(buffer.data, tensor.dtype, offset, value); });
}

void multiply(const StridedTensor& tensor, const Buffer& buffer, double factor) {
  tensor.for_each_offset([&](std::int64_t, std::int64_t offset) {
    store_element(buffer.data, tensor.dtype, offset, factor * load_element<double>(buffer.data, tensor.dtype, offset));
  });
}

void flip_byte(const void* data, std::ptrdiff_t at) {
  static_cast<std::byte*>(const_cast<void*>(data))[at] ^= std::byte{1};
}

class NegativeControls : public ::testing::TestWithParam<DType> {
 protected:
  CheckReport check(const Subject& subject, std::uint64_t seed = 3) const {
    CheckOptions options;
    options.seed = seed;
    return checking::check_subject(compiled_, subject, random_inputs(compiled_.problem, {seed, {}}), options);
  }

  /// Expects that these outputs are found wrong.
  void expect_wrong(const Subject& subject, const std::vector<std::string>& wrong) const {
    const CheckReport report = check(subject);
    EXPECT_FALSE(report.passed());
    for (const std::string& name : wrong) {
      EXPECT_FALSE(test::output(report, name).passed()) << name << " passed\n" << test::describe(report);
    }
  }
  void expect_wrong_forward(const std::function<void(const ForwardArgs&)>& fault, const std::string& wrong) const {
    expect_wrong(test::after_forward(right_, fault), {wrong});
  }
  void expect_wrong_backward(const std::function<void(const BackwardArgs&)>& fault, const std::string& wrong) const {
    expect_wrong(test::after_backward(right_, fault), {wrong});
  }

  /// Subjects whose program, or derivative, is another than the one that they should run.
  Subject with_program(const std::string& roots) const {
    compiler::CompiledProblem faulty = compiled_;
    faulty.problem.program = faulty.forward.program = Program::parse(kOperands + roots);
    return test::reference_subject(faulty);
  }
  Subject with_derivative(const std::string& roots) const {
    compiler::CompiledProblem faulty = compiled_;
    faulty.backward->program = Program::parse(kOperands + roots);
    return test::reference_subject(faulty);
  }

  StridedTensor tensor(TensorRole role) const { return problem::tensor_of("", compiled_.problem, role); }

  const compiler::CompiledProblem compiled_ = compiler::compile(checked_problem(GetParam()));
  const Subject right_ = test::reference_subject(compiled_);
};

TEST_P(NegativeControls, TheRightImplementationPasses) {
  for (const std::uint64_t seed : {0, 1, 2, 3}) {
    const CheckReport report = check(right_, seed);
    EXPECT_TRUE(report.passed()) << test::describe(report);
    EXPECT_EQ(report.outputs.size(), 7U);
    for (const OutputCheck& output : report.outputs) {
      EXPECT_EQ(output.left_out, 0) << output.name;
      EXPECT_GT(output.l2.scale, 0) << output.name;
      // The tolerance is a small part of the output's size.
      EXPECT_LT(output.l2.tolerance(), 0.05 * output.l2.scale) << output.name << "\n" << test::describe(report);
    }
  }
}

TEST_P(NegativeControls, DroppedModifier) {
  const std::string roots = std::string("value = score\n") + kKeep;
  expect_wrong(with_program(roots), {"o", "lse", "dq", "dk", "dv", "d_bias", "d_slope"});
}

TEST_P(NegativeControls, DroppedPartOfTheModifier) {
  const std::string no_slope = "value = 6.0 * tanh((score + bias) / 6.0)\n";
  const std::string no_cap = "value = score + bias + slope[h] * f32(kv_idx - q_idx) / 8.0\n";
  for (const std::string& value : {no_slope, no_cap}) expect_wrong(with_program(value + kKeep), {"o", "lse", "dq"});
}

TEST_P(NegativeControls, DroppedAndShiftedMask) {
  expect_wrong(with_program(kValue), {"o", "lse"});
  expect_wrong(with_program(std::string(kValue) + "keep = kv_idx < q_idx + 7"), {"o", "lse"});
}

TEST_P(NegativeControls, IdentityDerivative) {
  const std::string roots =
      "value = score\nd_score = upstream\naccumulate bias += upstream\n"
      "accumulate slope[h] += upstream * f32(kv_idx - q_idx) / 8.0";
  expect_wrong(with_derivative(roots), {"dq", "dk", "d_bias"});
}

TEST_P(NegativeControls, MissingOperandGradient) {
  const std::string roots =
      "let t = tanh((score + bias) / 6.0)\nlet g = upstream * (1.0 - t * t)\n"
      "value = score\nd_score = g\naccumulate bias += g";
  expect_wrong(with_derivative(roots), {"d_slope"});
}

TEST_P(NegativeControls, ZeroedForwardOutputs) {
  expect_wrong_forward([&](const ForwardArgs& args) { fill(tensor(TensorRole::kO), args.o, 0); }, "o");
  const StridedTensor lse = problem::lse_tensor(compiled_.problem);
  expect_wrong_forward([&](const ForwardArgs& args) { fill(lse, args.lse, 0); }, "lse");
}

TEST_P(NegativeControls, ZeroedGradients) {
  expect_wrong_backward([&](const BackwardArgs& args) { fill(tensor(TensorRole::kQ), args.dq, 0); }, "dq");
  expect_wrong_backward([&](const BackwardArgs& args) { fill(tensor(TensorRole::kK), args.dk, 0); }, "dk");
  expect_wrong_backward([&](const BackwardArgs& args) { fill(tensor(TensorRole::kV), args.dv, 0); }, "dv");
  for (std::uint32_t i = 0; i < 2; ++i) {
    const OperandSpec& spec = problem::spec_of(compiled_.problem, i);
    const auto zero = [&](const BackwardArgs& args) {
      fill(problem::tensor_of("", spec), args.d_operands.at(i).buffer, 0);
    };
    expect_wrong_backward(zero, "d_" + spec.name);
  }
}

TEST_P(NegativeControls, OneGradientAddedTwice) {
  expect_wrong_backward([&](const BackwardArgs& args) { multiply(tensor(TensorRole::kK), args.dk, 2); }, "dk");
}

TEST_P(NegativeControls, AnErrorOfAFewRoundings) {
  // Scores near 10, whose own rounding weighs in float32, make a few dozen of its roundings unavoidable.
  const double relative = GetParam() == DType::kF32 ? 100 * 0x1p-24 : GetParam() == DType::kF16 ? 0x1p-8 : 0x1p-5;
  const auto drift = [&](const ForwardArgs& args) { multiply(tensor(TensorRole::kO), args.o, 1 + relative); };
  expect_wrong_forward(drift, "o");
}

TEST_P(NegativeControls, OneWrongElement) {
  const auto disturb = [&](const ForwardArgs& args) {
    store_element(args.o.data, GetParam(), 79, load_element<double>(args.o.data, GetParam(), 79) + 0.5);
  };
  expect_wrong_forward(disturb, "o");
}

TEST_P(NegativeControls, OneElementNotWritten) {
  const auto restore = [&](const BackwardArgs& args) { std::memset(args.dq.data, 0xff, size_of(GetParam())); };
  const CheckReport report = check(test::after_backward(right_, restore));
  EXPECT_EQ(test::output(report, "dq").wrong_kind, 1);
  EXPECT_FALSE(report.passed());
}

TEST_P(NegativeControls, WritesOutsideOfTheOutputs) {
  struct Fault {
    std::string message;
    std::function<void(const ForwardArgs&)> write;
  };
  const auto gap = static_cast<std::ptrdiff_t>(24 * size_of(GetParam()));
  const auto end = [](const Buffer& buffer) { return static_cast<std::ptrdiff_t>(buffer.bytes); };
  const std::vector<Fault> faults{
      {"'o': 1 byte changed outside the tensor, the first 1 bytes before",
       [](const ForwardArgs& args) { flip_byte(args.o.data, -1); }},
      {"'o': 1 byte changed outside the tensor, the first 0 bytes after",
       [&](const ForwardArgs& args) { flip_byte(args.o.data, end(args.o)); }},
      {"'lse': 1 byte changed outside the tensor, the first 200 bytes after",
       [&](const ForwardArgs& args) { flip_byte(args.lse.data, end(args.lse) + 200); }},
      {"'o': 1 byte changed in the gaps", [&](const ForwardArgs& args) { flip_byte(args.o.data, gap); }},
      {"'v': 1 byte changed in a tensor that is only to be read",
       [](const ForwardArgs& args) { flip_byte(args.v.data, 5); }},
  };
  for (const Fault& fault : faults) {
    // A write that stays is also seen after the backward has run; with it switched off there is one message.
    compiler::CompiledProblem forward_only = compiled_;
    forward_only.problem.backward = false;
    forward_only.backward.reset();
    const CheckReport report = checking::check_subject(forward_only, test::after_forward(right_, fault.write),
                                                       random_inputs(forward_only.problem), {});
    EXPECT_FALSE(report.passed());
    ASSERT_EQ(report.memory_problems.size(), 1U) << fault.message;
    EXPECT_NE(report.memory_problems[0].find(fault.message), std::string::npos) << report.memory_problems[0];
  }
  const CheckReport report = check(test::after_backward(right_, [](const BackwardArgs& args) {
    flip_byte(args.dk.data, -200);
    flip_byte(args.o.data, 3);
  }));
  EXPECT_EQ(report.memory_problems.size(), 2U) << test::describe(report);
  EXPECT_FALSE(report.passed());
}

TEST_P(NegativeControls, WritesBeyondTheWorkspace) {
  Subject subject = right_;
  subject.forward_workspace_bytes = 100;
  subject.forward = [&](const ForwardArgs& args, Buffer workspace) {
    EXPECT_EQ(workspace.bytes, 100U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(workspace.data) % 64, 0U);
    std::memset(workspace.data, 0, 101);
    right_.forward(args, {});
  };
  const CheckReport report = check(subject);
  EXPECT_FALSE(report.passed());
  EXPECT_EQ(report.memory_problems.size(), 1U);
}

INSTANTIATE_TEST_SUITE_P(DTypes, NegativeControls, ::testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const auto& test) { return to_string(test.param); });

}  // namespace
}  // namespace scoremod
