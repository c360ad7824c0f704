#pragma once

#include <string_view>

#include "scoremod/problem.hpp"

#include "backend/kernels/family.hpp"

namespace scoremod::test {

/// Replaces `device hopper` in hopper/tiles.cuh on a host, after emulated_primitives(). WGMMAs, TMA loads and mbarriers
/// are emulated so that a wait for one that comes too late or too early shows.
std::string_view emulated_hopper_primitives();

/// The counterpart of write_tensor_maps() for these.
void write_emulated_maps(const AttentionProblem& problem, backend::kernels::ArgumentBytes& arguments);

}  // namespace scoremod::test
