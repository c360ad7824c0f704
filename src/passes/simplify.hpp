#pragma once

#include <functional>

#include "scoremod/program.hpp"

namespace scoremod::passes {

struct Rule;
/// Called with a rule each time that it rewrites something.
using RuleObserver = std::function<void(const Rule& rule)>;

/// Folds constants and applies the rules of rewrite_*.cpp. Every root keeps its value for all inputs, bit for bit in
/// f32 (one NaN is as good as another) and with i32 that wraps. Not even x + 0.0 is x (at -0.0), nor x * 0.0 zero, nor
/// x == x true.
///
/// Reaches its fixed point in one pass over the nodes: simplify(simplify(p)) == simplify(p). Never makes the program
/// have more operations; constants may be added where they take an operation away.
Program simplify(const Program& program, const RuleObserver& observer);
Program simplify(const Program& program);

}  // namespace scoremod::passes
