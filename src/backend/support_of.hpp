#pragma once

#include "scoremod/attention.hpp"

#include "backend/backend.hpp"

namespace scoremod::backend {

/// A backend's answer as users get it: its verdict, and among the notes what is to be known of the problem whatever
/// runs it. For the device that is current.
Support support_of(const Backend& backend, const compiler::CompiledProblem& problem);

}  // namespace scoremod::backend
