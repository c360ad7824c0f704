#include "problem/validate_sizes.hpp"

#include "base/fail.hpp"

namespace scoremod::problem {
namespace {

void validate_tokens(const char* field, const std::optional<std::int64_t>& tokens, std::int64_t batch,
                     const char* longest_field, std::int64_t longest) {
  if (!tokens) return;
  validate_size(field, *tokens);
  if (*tokens <= batch * longest) return;
  fail_argument(field, ": expected at most ", batch * longest, " tokens, batch * ", longest_field,
                ", since no sequence has more than ", longest_field, "; found ", *tokens);
}

void validate_paged(const AttentionProblem& problem) {
  if (!problem.paged) return;
  const auto& [block_size, blocks, blocks_per_sequence] = *problem.paged;
  validate_size("paged.block_size", block_size);
  validate_size("paged.blocks", blocks);
  validate_size("paged.blocks_per_sequence", blocks_per_sequence);
  if (problem.tokens_kv) {
    fail_argument("paged: expected no tokens_kv beside it, found ", *problem.tokens_kv,
                  ": keys lie in blocks or one sequence after the other; leave one of the fields out");
  }
  if (problem.backward) {
    fail_argument("paged: expected a problem without backward, found one with it: keys in a cache have no gradients; ",
                  "leave backward out, or gather k and v");
  }
  if (!problem.lengths.kv) {
    fail_argument("paged: expected lengths of keys beside it, which say how much of a page table is in use; ",
                  "found none; set lengths.kv");
  }
  if (block_size * blocks_per_sequence >= problem.seq_kv) return;
  fail_argument("paged.blocks_per_sequence: expected blocks for seq_kv (", problem.seq_kv, ") keys, at least ",
                (problem.seq_kv + block_size - 1) / block_size, "; found ", blocks_per_sequence, " of ", block_size,
                " keys each");
}

}  // namespace

void validate_size(std::string_view field, std::int64_t size) {
  if (is_size(size)) return;
  if (size == kOpenSize)
    fail_argument(field, ": expected a size from 1 to ", kMaxSize,
                  ", found an open one (null in JSON); give the size, or have the problem compiled for all sizes ",
                  "(OpenAttention), whose calls bring it");
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
  validate_tokens("tokens_q", problem.tokens_q, problem.batch, "seq_q", problem.seq_q);
  validate_tokens("tokens_kv", problem.tokens_kv, problem.batch, "seq_kv", problem.seq_kv);
  validate_paged(problem);
  if (problem.heads_q % problem.heads_kv != 0) {
    fail_argument("heads_kv: expected a divisor of heads_q (", problem.heads_q,
                  "), so that equally many query heads share each ", "key/value head; found ", problem.heads_kv);
  }
}

}  // namespace scoremod::problem
