#include "support/loaded_bias_cases.hpp"

#include "problem/tensor_view.hpp"

namespace scoremod::test {

checking::CheckCase loaded_bias_case(const std::string& program, std::int64_t dim, DType dtype) {
  checking::CheckCase test;
  test.name = program;
  AttentionProblem& problem = test.problem;
  problem.batch = 2;
  problem.heads_q = 2;
  problem.heads_kv = 1;
  problem.seq_q = 200;
  problem.seq_kv = 384;
  problem.dim_qk = problem.dim_v = dim;
  problem.dtype = dtype;
  problem.backward = false;
  problem.program = Program::parse(program);
  for (const OperandDecl& decl : problem.program.operands()) {
    problem.operands.push_back(problem::default_spec(problem, decl));
    if (decl.name == "x") problem.operands.back().dtype = dtype;
  }
  return test;
}

namespace {

constexpr const char* kByHead = "operand x: f32 [h, q_idx, kv_idx]\nvalue = score + x";
constexpr const char* kByBatch = "operand x: f32 [b, q_idx, kv_idx]\nvalue = score * x\nkeep = kv_idx <= q_idx";
constexpr const char* kByBoth =
    "operand s: f32 [h]\noperand x: f32 [b, h, q_idx, kv_idx]\n"
    "value = s * score + tanh(x) * x\nkeep = kv_idx % 3 != 1 | q_idx >= 100";
constexpr const char* kOfAll =
    "operand d: i32 [b, kv_idx]\noperand x: f32 [q_idx, kv_idx]\nvalue = score + x\nkeep = d >= 0";

}  // namespace

std::vector<checking::CheckCase> loaded_bias_cases() {
  return {loaded_bias_case(kByHead),
          loaded_bias_case(kByBatch),
          loaded_bias_case(kByBoth),
          loaded_bias_case(kOfAll),
          loaded_bias_case(kByHead, 128, DType::kBF16),
          loaded_bias_case("operand x: f32 [b, q_idx, kv_idx]\nvalue = x - score\nkeep = x < 0.5", 256)};
}

std::vector<checking::CheckCase> loaded_bias_backward_cases() {
  std::vector cases{loaded_bias_case(kByHead, 72), loaded_bias_case(kByBatch, 72, DType::kBF16),
                    loaded_bias_case(kByBoth, 80), loaded_bias_case(kOfAll, 72),
                    loaded_bias_case(kByHead, 128, DType::kBF16)};
  for (checking::CheckCase& test : cases) {
    test.problem.backward = true;
    for (OperandSpec& operand : test.problem.operands) operand.gradient = false;
  }
  return cases;
}

}  // namespace scoremod::test
