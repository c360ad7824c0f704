#pragma once

#include "backend/backend.hpp"

namespace scoremod::backend {

/// Runs every valid problem, slowly, in float64: the definition of what a problem means.
const Backend& reference_backend();

}  // namespace scoremod::backend
