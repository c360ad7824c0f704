#pragma once

#include <cstdint>

#include "scoremod/problem.hpp"

#include "backend/kernels/arguments.hpp"
#include "backend/kernels/tile_shape.hpp"

namespace scoremod::backend::kernels {

/// How much the cache asks memory for when a box lacks part of it (docs/performance.md, few queries).
enum class CacheLines : std::uint8_t { k128Bytes, k256Bytes };
/// Of a family's kernels. Those of few queries, which wait for memory alone, take 128 bytes; others were measured with
/// 256 only.
CacheLines cache_lines(Family family);

/// Writes the maps of the tensors that the arguments have. A tensor that no map can be made of (copies of boxes take
/// multiples of 16 bytes) is no longer `aligned` in the arguments: kernels then copy it element by element. Needs a
/// driver.
void write_tensor_maps(const AttentionProblem& problem, CacheLines lines, ArgumentBytes& arguments);

}  // namespace scoremod::backend::kernels
