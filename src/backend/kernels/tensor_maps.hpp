#pragma once

#include <array>
#include <cstdint>

#include "scoremod/problem.hpp"

#include "backend/kernels/arguments.hpp"
#include "backend/kernels/tile_shape.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::kernels {

/// How much the cache asks memory for when a box lacks part of it (docs/performance.md, few queries).
enum class CacheLines : std::uint8_t { k128Bytes, k256Bytes };
/// Of a family's kernels. Those of few queries, which wait for memory alone, take 128 bytes; others were measured with
/// 256 only.
CacheLines cache_lines(Family family);

/// A tensor of a call, and its sizes as its map has them.
struct MappedTensor {
  device::TensorArgument* tensor = nullptr;
  problem::TensorShape shape;
};
/// Those of TensorMaps, in its order. The last one is the operand whose tiles are copied, if any, with its keys as
/// dims; of batches or heads that share it there is one.
std::array<MappedTensor, TensorMaps::kCount> mapped_tensors(const AttentionProblem& problem,
                                                            device::AttentionArguments& call);

/// Writes the maps of the tensors that the arguments have. A tensor that no map can be made of (copies of boxes take
/// multiples of 16 bytes) is no longer `aligned` in the arguments: kernels then copy it element by element. Needs a
/// driver.
void write_tensor_maps(const AttentionProblem& problem, const TileShape& shape, ArgumentBytes& arguments);

}  // namespace scoremod::backend::kernels
