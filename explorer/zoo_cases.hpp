#pragma once

#include "explorer/form_case.hpp"

namespace scoremod::explorer {

/// Each ready-made modifier alone, and each score_mod under a causal mask: whole programs rather than single forms.
std::vector<FormCase> zoo_cases();

}  // namespace scoremod::explorer
