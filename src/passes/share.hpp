#pragma once

#include "scoremod/program.hpp"

namespace scoremod::passes {

/// Orders the arguments of commuting ops, and mirrors comparisons to that order. So a + b and b + a, or q_idx >= kv_idx
/// and kv_idx <= q_idx, become one node. The order is structural: by height, then op, then arguments; constants come
/// last. Every root keeps its value bit for bit; min and max of f32 keep their order, because min(0.0, -0.0) depends on
/// it. Idempotent.
///
/// No pass has to merge equal nodes or drop dead ones: the builder makes equal nodes once, and its finish() drops dead
/// ones.
Program share(const Program& program);

}  // namespace scoremod::passes
