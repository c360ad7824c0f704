#pragma once

#include "tools/cudnn/pattern_case.hpp"

namespace scoremod::explorer {

/// Comparisons of a difference with zero become comparisons of the two sides: q - kv >= 0 becomes q >= kv, in this
/// mode.
Mutation direct_comparison();
/// q < n, which the lowering writes as max(q, n) - q != 0, becomes one comparison.
Mutation direct_query_bound();
/// Operands lose the axes of stride 0 that the lowering gave them: B,1,Sq,1 becomes B,1,1,1.
Mutation operands_as_declared();
/// Logical nodes compute in this type.
Mutation logical_compute(backend::cudnn::ElementType type);
/// An index expression comes first if the lowering writes the score first: x + y becomes y + x, and -x + y becomes y -
/// x.
/// -x + y becomes y - x.
Mutation index_before_score();
/// Nodes read the inputs of identity casts: int32 indices in FLOAT arithmetic.
Mutation without_casts();
/// Casts from f32 to i32 read their number as it is, not rounded towards zero beforehand.
Mutation without_truncation();
/// The first operand, which depends on q and kv by their difference only, has an entry for each. It has stride -1 along
/// q and 1 along kv.
Mutation along_the_diagonal(bool along_heads);
/// select(not c, x, -inf) becomes select(c, -inf, x), the constant first.
Mutation constant_first_select();
/// Comparisons compute in this type.
Mutation comparison_compute(backend::cudnn::ElementType type);
/// AND of booleans becomes a product of booleans with this compute type.
Mutation and_as_product(backend::cudnn::ElementType type);

/// One after the other.
Mutation both(Mutation first, Mutation second);
/// Multiplications by 1 before the value's last node, until the forward part has this many nodes.
Mutation padded_to(std::size_t forward_nodes);
/// Value and adjoint are not cut off past the last row and key.
Mutation without_tail_guard();

}  // namespace scoremod::explorer
