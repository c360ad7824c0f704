#pragma once

#include "backend/backend.hpp"

namespace scoremod::backend {

/// Tiled attention on the CPU's vector units: online softmax, memory linear in the sequence lengths, threads. Runs
/// every valid problem.
const Backend& cpu_backend();

}  // namespace scoremod::backend
