#pragma once

#include "scoremod/program.hpp"

namespace scoremod::passes {

/// Gives the arguments of commuting ops one order, and mirrors comparisons to it, so that a + b and b + a, or
/// q_idx >= kv_idx and kv_idx <= q_idx, become one node. The order is structural: by height, then op, then arguments;
/// constants come last. Every root keeps its value bit for bit; min and max of f32 keep their order, because
/// min(0.0, -0.0) depends on it. Idempotent.
///
/// Equal nodes are one node in every program (the builder makes them once), and dead ones are dropped by its finish(),
/// so that no pass has to do either.
Program share(const Program& program);

}  // namespace scoremod::passes
