#pragma once

#include "scoremod/problem.hpp"

namespace scoremod::test {

/// Small sizes that are all different: batch 2, heads 4 and 2, lengths 5 and 7, dims 8 and 6; f32, without a modifier.
AttentionProblem small_problem();

/// The problem with this program, and with a dense tensor for each of its operands. A tensor has the sizes along its
/// axes in its type's own dtype, and `table_extent` along every dimension of a table.
AttentionProblem problem_for(const Program& program, AttentionProblem problem = small_problem(),
                             std::int64_t table_extent = 16);

}  // namespace scoremod::test
