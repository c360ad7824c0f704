#include "problem/empty_sizes.hpp"

#include <algorithm>

namespace scoremod::problem {
namespace {

void fill(std::int64_t& size) {
  if (size == 0) size = 1;
}

}  // namespace

bool is_empty(const AttentionProblem& p) {
  if (p.tokens_q || p.tokens_kv || p.paged || (p.heads_q == 0) != (p.heads_kv == 0)) return false;
  return p.batch == 0 || p.heads_q == 0 || p.seq_q == 0 || p.seq_kv == 0;
}

AttentionProblem nonempty_twin(AttentionProblem problem) {
  for (std::int64_t* size : {&problem.batch, &problem.heads_q, &problem.heads_kv, &problem.seq_q, &problem.seq_kv})
    fill(*size);
  for (OperandSpec& spec : problem.operands) std::ranges::for_each(spec.shape, fill);
  return problem;
}

void validate_for_calls(const AttentionProblem& problem) {
  if (is_empty(problem)) return validate(nonempty_twin(problem));
  validate(problem);
}

}  // namespace scoremod::problem
