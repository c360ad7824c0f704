#include "device/operand_gradient_case.hpp"

#include <algorithm>

#include <gtest/gtest.h>

#include "scoremod/inputs.hpp"

#include "backend/cuda/device/cuda_memory.hpp"
#include "backend/cuda/device/own_stream.hpp"
#include "check/check_subject.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"
#include "runtime/call_tensors.hpp"

namespace scoremod::backend::kernels {
namespace {

std::vector<std::vector<std::byte>> bytes_of(std::span<const OperandGradient> gradients) {
  std::vector<std::vector<std::byte>> all;
  for (const OperandGradient& gradient : gradients) {
    all.emplace_back(gradient.buffer.bytes);
    cuda::cuda_memory().copy_out(all.back().data(), gradient.buffer.data, gradient.buffer.bytes);
  }
  return all;
}

std::span<std::byte> bytes(Buffer workspace) { return {static_cast<std::byte*>(workspace.data), workspace.bytes}; }

}  // namespace

AttentionProblem problem_of(const OperandGradientCase& test) {
  AttentionProblem p;
  p.batch = test.sizes.batch;
  p.heads_q = test.sizes.heads_q;
  p.heads_kv = test.sizes.heads_kv;
  p.seq_q = test.sizes.seq_q;
  p.seq_kv = test.sizes.seq_kv;
  p.dim_qk = p.dim_v = test.sizes.dim;
  p.dtype = test.dtype;
  p.sink = test.sink;
  p.dropout = test.dropout;
  p.backward = p.stats = true;
  if (test.ragged) {
    p.tokens_q = p.batch * p.seq_q * 3 / 5;
    p.tokens_kv = p.batch * p.seq_kv * 3 / 5;
    p.q = p.o = p.k = p.v = {Layout::kTHD, {}};
  }
  p.program = Program::parse(test.program);
  for (const OperandDecl& decl : p.program.operands()) {
    p.operands.push_back(problem::default_spec(p, decl));
    if (!decl.is_table()) continue;
    p.operands.back().shape = test.table.empty() ? std::vector<std::int64_t>{41, p.heads_q} : test.table;
  }
  return problem::with_implied_operands(std::move(p));
}

void expect_right_and_same_bits(const OperandGradientCase& test, const compiler::CompiledProblem& compiled,
                                const Backend& backend, const ForwardPlan& forward, const BackwardPlan* attention,
                                const BackwardPlan& gradients, const std::string& what) {
  const AttentionProblem& problem = compiled.problem;
  checking::Subject subject;
  subject.backend = backend.name();
  subject.memory = &cuda::cuda_memory();
  subject.function_error = backend.function_error();
  subject.forward_workspace_bytes = forward.workspace_bytes();
  subject.backward_workspace_bytes =
      std::max(gradients.workspace_bytes(), attention == nullptr ? 0 : attention->workspace_bytes());
  subject.forward = [&](const ForwardArgs& args, Buffer workspace) {
    const auto call = runtime::check_call(problem, args, workspace, forward.workspace_bytes(), cuda::cuda_memory());
    forward.execute(call.tensors, call.parameters, bytes(workspace));
    cuda::wait_for_own_stream();
  };
  subject.backward = [&](const BackwardArgs& args, Buffer workspace) {
    const auto call =
        runtime::check_call(problem, args, workspace, subject.backward_workspace_bytes, cuda::cuda_memory());
    if (attention != nullptr) attention->execute(call.tensors, call.parameters, bytes(workspace));
    std::vector<std::vector<std::byte>> first;
    for (int i = 0; i < 2; ++i) {
      gradients.execute(call.tensors, call.parameters, bytes(workspace));
      cuda::wait_for_own_stream();
      if (i == 0) first = bytes_of(args.d_operands);
    }
    EXPECT_EQ(first, bytes_of(args.d_operands));
  };
  CheckOptions options;
  options.call.dropout_seed = 77;
  test::record(test.name, what, checking::check_subject(compiled, subject, random_inputs(problem), options), "");
}

}  // namespace scoremod::backend::kernels
