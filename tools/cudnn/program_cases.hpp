#pragma once

#include "tools/cudnn/pattern_case.hpp"

namespace scoremod::explorer {

/// Programs that show what no single pattern does: masks of every kind, rows without a key, very negative LSEs, values
/// and adjoints that do not depend on the score, computed operands, and the node budget in backward.
std::vector<PatternCase> program_cases();

}  // namespace scoremod::explorer
