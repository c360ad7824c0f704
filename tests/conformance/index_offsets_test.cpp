// Index offsets that the problem does not announce: every backend refuses them alike, in both directions.
#include <gtest/gtest.h>

#include "scoremod/attention.hpp"
#include "scoremod/inputs.hpp"
#include "scoremod/problem_buffers.hpp"

#include "support/refusal.hpp"

namespace scoremod {
namespace {

AttentionProblem causal_problem() {
  AttentionProblem problem;
  problem.dtype = DType::kBF16;  // which every backend has, with these head dims
  problem.seq_q = problem.seq_kv = 64;
  problem.dim_qk = problem.dim_v = 64;
  problem.program = Program::parse("value = score\nkeep = kv_idx <= q_idx");
  problem.backward = problem.stats = true;
  return problem;
}

/// Holds one backend to it. Options are checked before memory is, so that memory of the host does for all.
void expect_offsets_are_refused(const AttentionProblem& problem, const std::string& backend) {
  SCOPED_TRACE(backend);
  CompileOptions compile_options;
  compile_options.backend = backend;
  const Attention attention = Attention::compile(problem, compile_options);
  ProblemBuffers buffers(problem, buffers_of(random_inputs(problem)));
  for (const IndexOffsets offsets :
       {IndexOffsets{1, 0, 0, 0}, IndexOffsets{0, 1, 0, 0}, IndexOffsets{0, 0, 1, 0}, IndexOffsets{0, 0, 0, 1}}) {
    CallOptions call;
    call.offsets = offsets;
    test::expect_refusal("index_offsets", [&] { attention.forward(buffers.forward(call)); });
    test::expect_refusal("index_offsets", [&] { attention.backward(buffers.backward(call)); });
  }
}

TEST(IndexOffsets, AreRefusedByEveryBackendWhereTheProblemHasNone) {
  const AttentionProblem problem = causal_problem();
  int asked = 0;
  for (const Support& answer : support(problem)) {
    if (!answer.supported) continue;  // those of a device, where there is none
    expect_offsets_are_refused(problem, answer.backend);
    ++asked;
  }
  EXPECT_GE(asked, 2) << "cpu and reference at least";
}

}  // namespace
}  // namespace scoremod
