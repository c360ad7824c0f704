#pragma once

#include "tools/cudnn/pattern_case.hpp"

namespace scoremod::explorer {

/// Programs whose effects no single pattern shows: masks of every kind, rows without a key, very negative LSEs, and the
/// node budget in backward. They also have values and adjoints that do not depend on the score, and computed operands.
std::vector<PatternCase> program_cases();

}  // namespace scoremod::explorer
