#pragma once

#include "scoremod/problem.hpp"

namespace scoremod::problem {

/// Whether there are no batches, heads, queries or keys, so that every row is one without a key. Varlen tokens and
/// pages are never none, and a number of heads alone is a mistake: validate() refuses their zeros.
bool is_empty(const AttentionProblem& problem);

/// An empty problem with 1 in place of each 0, which compiles and plans as the others of its structure do.
AttentionProblem nonempty_twin(AttentionProblem problem);

/// validate() of a problem that may be empty.
void validate_for_calls(const AttentionProblem& problem);

}  // namespace scoremod::problem
