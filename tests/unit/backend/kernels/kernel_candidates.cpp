#include "unit/backend/kernels/kernel_candidates.hpp"

#include "backend/kernels/backend/kernels_backend.hpp"
#include "compiler/pipeline.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend {

AttentionProblem problem_of(const char* program) {
  AttentionProblem problem;
  problem.batch = 4;
  problem.heads_q = problem.heads_kv = 16;
  problem.seq_q = problem.seq_kv = 4096;
  problem.dim_qk = problem.dim_v = 128;
  problem.dtype = DType::kBF16;
  problem.backward = problem.stats = true;
  problem.program = Program::parse(program);
  for (const OperandDecl& decl : problem.program.operands())
    problem.operands.push_back(problem::default_spec(problem, decl));
  for (OperandSpec& operand : problem.operands) operand.gradient = false;
  return problem;
}

Target h200() {
  Target target;
  target.device.name = "NVIDIA H200";
  target.device.compute_capability = 90;
  target.device.multiprocessors = 132;
  target.device.shared_memory_per_block = 232448;
  target.present = false;
  return target;
}

std::vector<Candidate> candidates_of(const AttentionProblem& problem, Direction direction, const Target& target) {
  std::vector<UnsupportedReason> reasons;
  return kernels_backend().candidates(compiler::compile(problem), {direction, true, {}}, target, reasons);
}

Target a100() {
  Target target = h200();
  target.device.name = "NVIDIA A100";
  target.device.compute_capability = 80;
  target.device.shared_memory_per_block = 166912;
  return target;
}

}  // namespace scoremod::backend
