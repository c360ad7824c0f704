#include "conformance/host_calls.hpp"

#include <algorithm>

#include <gtest/gtest.h>

#include "scoremod/attention.hpp"
#include "scoremod/check.hpp"

#include "base/element.hpp"
#include "conformance/conformance.hpp"
#include "support/check_report.hpp"
#include "support/dense_attention.hpp"

namespace scoremod::test {

void set_operand(const AttentionProblem& problem, ProblemInputs& inputs, const std::string& name,
                 const std::vector<double>& values) {
  for (const TensorInfo& tensor : tensors_of(problem)) {
    if (tensor.name != name) continue;
    const auto operand = std::ranges::find(inputs.operands, name, &OwnedOperand::name);
    ASSERT_NE(operand, inputs.operands.end()) << name;
    for (std::size_t i = 0; i < values.size(); ++i)
      store_element(operand->bytes.data(), tensor.dtype, static_cast<std::int64_t>(i), values[i]);
  }
}

std::vector<double> output_values(const ProblemBuffers& buffers, const std::string& name) {
  const auto found = std::ranges::find(buffers.outputs(), name, &OutputTensor::name);
  if (found == buffers.outputs().end()) return {};
  return to_dense(found->bytes, found->tensor.dtype, found->tensor.shape, found->tensor.strides);
}

ProblemBuffers run_calls(const AttentionProblem& problem, const ProblemInputs& inputs, const std::string& backend,
                         const CallOptions& call) {
  CompileOptions options;
  options.backend = backend;
  const Attention attention = Attention::compile(problem, options);
  ProblemBuffers buffers(problem, buffers_of(inputs));
  attention.forward(buffers.forward(call));
  if (problem.backward) attention.backward(buffers.backward(call));
  return buffers;
}

void expect_backends_conform(const AttentionProblem& problem, const ProblemInputs& inputs, const CallOptions& call) {
  for (const std::string& backend : tested_backends()) {
    CheckOptions options;
    options.compile.backend = backend;
    options.inputs = inputs;
    options.call = call;
    const CheckReport report = check(problem, options);
    EXPECT_TRUE(report.passed()) << describe(report);
  }
}

}  // namespace scoremod::test
