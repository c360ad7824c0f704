#include "support/large_problem.hpp"

#include "support/problem_for.hpp"

namespace scoremod::test {

AttentionProblem large_problem(const std::string& program) {
  AttentionProblem problem;
  problem.batch = 8;
  problem.heads_q = 32;
  problem.heads_kv = 4;
  problem.seq_q = 4096;
  problem.seq_kv = 8192;
  problem.dim_qk = 192;
  problem.dim_v = 128;
  problem.dtype = DType::kBF16;
  problem.backward = true;
  constexpr std::int64_t kTableExtent = 64;
  return problem_for(Program::parse(program), problem, kTableExtent);
}

}  // namespace scoremod::test
