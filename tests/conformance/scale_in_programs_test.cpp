// Programs that read the factor of q k.

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "scoremod/attention.hpp"
#include "scoremod/problem_buffers.hpp"

#include "check/check_subject.hpp"
#include "conformance/conformance.hpp"
#include "support/check_report.hpp"
#include "support/problem_for.hpp"
#include "support/refusal.hpp"

namespace scoremod {
namespace {

AttentionProblem problem_of(const char* program) {
  AttentionProblem problem = test::small_problem();
  problem.backward = problem.stats = true;
  problem.scale = 0.375F;
  problem.program = Program::parse(program);
  problem.operands = {{"x", DType::kF32, {problem.heads_q, problem.seq_kv}, {}}};
  return problem;
}

ProblemBuffers run(const AttentionProblem& problem, const std::string& backend, const CallOptions& call = {}) {
  CompileOptions options;
  options.backend = backend;
  const Attention attention = Attention::compile(problem, options);
  const ProblemInputs inputs = random_inputs(problem);
  ProblemBuffers buffers(problem, buffers_of(inputs));
  attention.forward(buffers.forward(call));
  attention.backward(buffers.backward(call));
  return buffers;
}

constexpr const char* kReads = "operand x: f32 [h, kv_idx]\nvalue = score + qk_scale * x\nkeep = kv_idx < q_idx + 3";
constexpr const char* kConstant = "operand x: f32 [h, kv_idx]\nvalue = score + 0.375 * x\nkeep = kv_idx < q_idx + 3";

TEST(ScaleInPrograms, IsWhatTheProductsWereMultipliedBy) {
  const AttentionProblem problem = problem_of(kReads);
  for (const std::string& backend : {std::string("cpu"), std::string("reference")}) {
    const ProblemBuffers found = run(problem, backend), expected = run(problem_of(kConstant), backend);
    EXPECT_TRUE(std::ranges::equal(found.outputs(), expected.outputs(), {}, &OutputTensor::bytes, &OutputTensor::bytes))
        << backend;
  }
  for (const std::string& backend : test::tested_backends()) {
    CheckOptions options;
    options.compile.backend = backend;
    const CheckReport report = check(problem, options);
    EXPECT_TRUE(report.passed()) << test::describe(report);
  }
}

/// A call's own would leave the program with another.
TEST(ScaleInPrograms, IsTheProblems) {
  CallOptions call;
  call.scale = 0.375F;
  EXPECT_NO_THROW(run(problem_of(kReads), "cpu", call));
  call.scale = 0.5F;
  test::expect_refusal(
      "expected no scale of a call other than the problem's (0.375), since its program reads 'qk_scale'",
      [&] { run(problem_of(kReads), "cpu", call); });
}

}  // namespace
}  // namespace scoremod
