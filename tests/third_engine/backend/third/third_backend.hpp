#pragma once

#include "backend/backend.hpp"

namespace scoremod::backend {

/// An engine of the host for tests of the road that every engine takes. It computes with the cpu backend's plans, takes
/// head dims up to 64, and has two candidates: one that is predicted to be the fastest and gives wrong numbers, and one
/// that is right.
const Backend& third_backend();

}  // namespace scoremod::backend
