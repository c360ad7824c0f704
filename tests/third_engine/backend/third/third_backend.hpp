#pragma once

#include "backend/backend.hpp"

namespace scoremod::backend {

/// A host backend for tests of the path that every backend takes. It computes with the cpu backend's plans, takes head
/// dims up to 64, and has two candidates. One is predicted to be the fastest and gives wrong numbers, the other is
/// right.
const Backend& third_backend();

}  // namespace scoremod::backend
