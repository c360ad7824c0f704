#pragma once

#include <span>
#include <vector>

#include "ir/builder.hpp"

namespace scoremod::passes {

/// The AND terms of a bool node in normal form: negations pushed down to the comparisons (where that is exact: not to
/// orderings of f32, which NaN makes false both ways), selects with a constant branch as and / or, min and max in
/// comparisons of i32 split where they mean "both", no duplicates, ordered by structure. Empty: always true. {false}:
/// always false.
std::vector<NodeId> conjunction_terms(ir::Builder& builder, NodeId node);

/// ((t0 & t1) & t2) & ...; kNoNode when there are none.
NodeId conjunction_of(ir::Builder& builder, std::span<const NodeId> terms);

}  // namespace scoremod::passes
