#include "support/problem_for.hpp"

#include "problem/tensor_view.hpp"

namespace scoremod::test {

AttentionProblem small_problem() {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = 4;
  problem.heads_kv = 2;
  problem.seq_q = 5;
  problem.seq_kv = 7;
  problem.dim_qk = 8;
  problem.dim_v = 6;
  return problem;
}

AttentionProblem problem_for(const Program& program, AttentionProblem problem, std::int64_t table_extent) {
  problem.program = program;
  problem.operands.clear();
  for (const OperandDecl& decl : program.operands()) {
    OperandSpec& spec = problem.operands.emplace_back(problem::default_spec(problem, decl));
    if (decl.is_table()) spec.shape.assign(static_cast<std::size_t>(decl.table_rank), table_extent);
  }
  return problem;
}

}  // namespace scoremod::test
