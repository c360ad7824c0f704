#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/form_choices.hpp"

namespace scoremod::backend::cudnn {

/// cuDNN's part of form_choices().
std::vector<DirectionForms> explain_forms(const compiler::CompiledProblem& problem,
                                          const std::optional<std::string>& device_properties);

}  // namespace scoremod::backend::cudnn
