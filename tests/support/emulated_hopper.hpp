#pragma once

#include <string_view>

#include "scoremod/problem.hpp"

#include "backend/kernels/workspace/arguments.hpp"

namespace scoremod::test {

/// What takes the place of hopper/primitives.cuh on a host, after emulated_primitives(): products of warpgroups, copies
/// of boxes and barriers that count, so that a product, copy or arrival that is waited for too late or too early shows.
std::string_view emulated_hopper_primitives();

/// What write_tensor_maps() writes for a device, for these.
void write_emulated_maps(const AttentionProblem& problem, backend::kernels::ArgumentBytes& arguments);

}  // namespace scoremod::test
