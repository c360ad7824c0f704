#pragma once

#include "explorer/form_case.hpp"

namespace scoremod::explorer {

/// Programs that show what no single form does: masks of every kind, rows without a key, very negative LSEs, values and
/// adjoints that do not depend on the score, computed operands, and the node budget in backward.
std::vector<FormCase> program_cases();

}  // namespace scoremod::explorer
