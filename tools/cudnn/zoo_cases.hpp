#pragma once

#include "tools/cudnn/pattern_case.hpp"

namespace scoremod::explorer {

/// Each ready-made modifier alone, and each score_mod under a causal mask: whole programs rather than single patterns.
std::vector<PatternCase> zoo_cases();

}  // namespace scoremod::explorer
