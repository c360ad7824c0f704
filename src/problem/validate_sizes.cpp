#include "problem/validate_sizes.hpp"

#include "base/fail.hpp"

namespace scoremod::problem {
namespace {

/// Indices are i32, and below this limit the difference of two of them and their sum cannot wrap.
constexpr std::int64_t kMaxSize = std::int64_t{1} << 30;

}  // namespace

void validate_size(const std::string& field, std::int64_t size) {
  if (size >= 1 && size <= kMaxSize) return;
  fail_argument(field, ": expected a size from 1 to ", kMaxSize, " (indices are i32), found ", size);
}

void validate_sizes(const AttentionProblem& problem) {
  validate_size("batch", problem.batch);
  validate_size("heads_q", problem.heads_q);
  validate_size("heads_kv", problem.heads_kv);
  validate_size("seq_q", problem.seq_q);
  validate_size("seq_kv", problem.seq_kv);
  validate_size("dim_qk", problem.dim_qk);
  validate_size("dim_v", problem.dim_v);
  if (problem.heads_q % problem.heads_kv != 0) {
    fail_argument("heads_kv: expected a divisor of heads_q (", problem.heads_q,
                  "), so that equally many query heads share each ", "key/value head; found ", problem.heads_kv);
  }
}

}  // namespace scoremod::problem
