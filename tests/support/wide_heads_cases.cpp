#include "support/wide_heads_cases.hpp"

#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::test {

checking::CheckCase check_case(const WideCase& from) {
  checking::CheckCase test;
  AttentionProblem& p = test.problem;
  test.name = from.name;
  p.batch = 2;
  p.heads_q = from.heads_q;
  p.heads_kv = 1;
  p.seq_q = from.seq_q;
  p.seq_kv = from.seq_kv;
  p.dim_qk = from.dim_qk;
  p.dim_v = from.dim_v;
  p.dtype = from.dtype;
  p.dtype_kv = from.dtype_kv;
  p.stats = true;
  p.max_logit = true;
  p.sink = Sink::kLearned;
  p.program = Program::parse(from.program);
  if (from.page > 0) {
    p.paged = PagedKeys{
        .block_size = from.page, .blocks = 9, .blocks_per_sequence = (from.seq_kv + from.page - 1) / from.page};
    p.lengths.kv = true;
  }
  if (from.unaligned) {
    const std::int64_t row = from.dim_v + 1;
    p.v.strides = Strides{from.seq_kv * row, from.seq_kv * row, row, 1};
    p.o.strides = Strides{from.heads_q * from.seq_q * row, from.seq_q * row, row, 1};
  }
  for (const OperandDecl& decl : p.program.operands()) p.operands.push_back(problem::default_spec(p, decl));
  p = problem::with_implied_operands(std::move(p));
  return test;
}

}  // namespace scoremod::test
