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

/// Text in place of `device float8` in float8/tiles.cuh, after that of emulated_hopper_primitives(): WGMMAs of e4m3.
/// Their sums keep as few digits as a Hopper device's.
std::string_view emulated_float8_primitives();

}  // namespace scoremod::test
