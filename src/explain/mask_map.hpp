#pragma once

#include "scoremod/explain.hpp"

#include "compiler/compiled_problem.hpp"

namespace scoremod::explaining {

/// The mask of batch 0 and head 0 in at most kMapSide by kMapSide tiles, as far as the program alone decides it. It has
/// no rows if a program keeps everything.
MaskExplanation::Map mask_map(const compiler::CompiledProblem& compiled);

inline constexpr std::int64_t kMapSide = 32;

}  // namespace scoremod::explaining
