#pragma once

#include "scoremod/problem.hpp"

#include "backend/kernels/arguments.hpp"

namespace scoremod::backend::kernels {

/// Writes the maps of the tensors that the arguments have. A tensor that no map can be made of (copies of boxes take
/// multiples of 16 bytes) is no longer `aligned` in the arguments: kernels then copy it element by element. Needs a
/// driver.
void write_tensor_maps(const AttentionProblem& problem, ArgumentBytes& arguments);

}  // namespace scoremod::backend::kernels
