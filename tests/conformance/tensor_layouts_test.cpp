// Gradients that lie otherwise than their tensors, and an output of another dtype.

#include <algorithm>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "scoremod/check.hpp"
#include "scoremod/problem_buffers.hpp"

#include "base/element.hpp"
#include "compiler/pipeline.hpp"
#include "conformance/host_calls.hpp"
#include "conformance/operand_faults.hpp"
#include "problem/strided_tensor.hpp"
#include "support/dense_attention.hpp"
#include "support/faulty_subject.hpp"
#include "support/problem_for.hpp"

namespace scoremod {
namespace {

using Index = std::int64_t;

AttentionProblem with_gradient_layouts() {
  AttentionProblem problem = test::small_problem();
  problem.backward = problem.stats = true;
  problem.d_o = TensorLayout{Layout::kBHSD, Strides{0, 0, 6, 1}};  // one for all batches and heads
  problem.dq = TensorLayout{Layout::kBHSD, {}};
  problem.dk = TensorLayout{Layout::kSBHD, {}};
  problem.dv = TensorLayout{Layout::kBSHD, Strides{1000, 20, 100, 2}};
  return problem;
}

TEST(GradientLayouts, HoldTheSameGradients) {
  const AttentionProblem problem = with_gradient_layouts();
  const ProblemInputs inputs = random_inputs(problem);
  AttentionProblem plain = problem;
  plain.d_o.reset();
  plain.dq.reset();
  plain.dk.reset();
  plain.dv.reset();
  // An equal upstream gradient, written out.
  ProblemInputs written = random_inputs(plain);
  written.q = inputs.q;
  written.k = inputs.k;
  written.v = inputs.v;
  problem::tensor_of("d_o", plain, problem::TensorRole::kDO).for_each_offset([&](Index number, Index offset) {
    const Index d = number % 6, i = number / 6 % 5;
    store_element(written.d_o.data(), DType::kF32, offset,
                  load_element<double>(inputs.d_o.data(), DType::kF32, i * 6 + d));
  });
  for (const std::string backend : {"reference", "cpu"}) {
    const ProblemBuffers found = test::run_calls(problem, inputs, backend),
                         expected = test::run_calls(plain, written, backend);
    for (const OutputTensor& output : found.outputs()) {
      const auto other = std::ranges::find(expected.outputs(), output.name, &OutputTensor::name);
      if (!output.name.starts_with("d")) continue;
      using problem::TensorRole;
      const TensorRole role = output.name == "dq"   ? TensorRole::kDQ
                              : output.name == "dk" ? TensorRole::kDK
                                                    : TensorRole::kDV;
      const problem::StridedTensor here = problem::tensor_of("", problem, role),
                                   there = problem::tensor_of("", plain, role);
      EXPECT_EQ(test::to_dense(output.bytes, DType::kF32, here.shape, here.strides),
                test::to_dense(other->bytes, DType::kF32, there.shape, there.strides))
          << backend << output.name;
    }
  }
  test::expect_backends_conform(problem, inputs);
}

TEST(GradientLayoutsNegativeControl, AGradientInItsTensorsLayoutIsFound) {
  AttentionProblem problem = test::small_problem();
  problem.backward = problem.stats = true;
  const compiler::CompiledProblem as_tensors = compiler::compile(problem);
  problem.dq = TensorLayout{Layout::kBHSD, {}};
  const compiler::CompiledProblem right = compiler::compile(problem);
  const ProblemInputs inputs = random_inputs(problem);
  EXPECT_TRUE(test::passes(right, test::reference_subject(right), inputs));
  EXPECT_FALSE(test::passes(right, test::reference_subject(as_tensors), inputs));
}

TEST(OutputDtype, IsThatOfTheOutputAndItsGradient) {
  for (const auto& [dtype, dtype_o] : {std::pair{DType::kBF16, DType::kF32}, std::pair{DType::kF32, DType::kF16},
                                       std::pair{DType::kF16, DType::kBF16}}) {
    AttentionProblem problem = test::small_problem();
    problem.backward = problem.stats = true;
    problem.dtype = dtype;
    problem.dtype_o = dtype_o;
    test::expect_backends_conform(problem, random_inputs(problem));
  }
  // An output that is not rounded to 16 bits is nearer to the oracle than one that is.
  AttentionProblem problem = test::small_problem();
  problem.dtype = DType::kBF16;
  const auto error = [&] {
    CheckOptions options;
    options.compile.backend = "cpu";
    return check(problem, options).outputs.front().max.error;
  };
  const double rounded = error();
  problem.dtype_o = DType::kF32;
  EXPECT_LT(error(), rounded / 16);
}

}  // namespace
}  // namespace scoremod
