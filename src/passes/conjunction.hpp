#pragma once

#include <span>
#include <vector>

#include "ir/builder.hpp"

namespace scoremod::passes {

/// The AND terms of a bool node in normal form, without duplicates and ordered by structure. Negations are pushed down
/// to the comparisons if that is exact, which it is not for orderings of f32 with NaN. Selects with a constant branch
/// become and / or; min and max in i32 comparisons are split where they mean "both". Empty: always true. {false}:
/// always false.
std::vector<NodeId> conjunction_terms(ir::Builder& builder, NodeId node);

/// ((t0 & t1) & t2) & ...; kNoNode when there are none.
NodeId conjunction_of(ir::Builder& builder, std::span<const NodeId> terms);

}  // namespace scoremod::passes
