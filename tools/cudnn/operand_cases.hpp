#pragma once

#include "tools/cudnn/pattern_case.hpp"

namespace scoremod::explorer {

/// An operand of every subset of the axes, type and layout, as the lowering writes it and as it is declared. Also
/// biases whose gradient cuDNN writes.
std::vector<PatternCase> operand_cases();

}  // namespace scoremod::explorer
