#pragma once

#include <array>
#include <cstdint>

#include "scoremod/problem.hpp"

#include "backend/kernels/arguments.hpp"
#include "backend/kernels/tile_shape.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::kernels {

/// How much L2 asks memory for when a box lacks part of it (docs/performance.md).
enum class CacheLines : std::uint8_t { k128Bytes, k256Bytes };
/// The cache lines of a family's TMA loads. Decode kernels, which are memory-bound, take 128 bytes; others were
/// measured with 256 only.
CacheLines cache_lines(Family family);

/// A tensor of a call, and its sizes as its map has them.
struct MappedTensor {
  device::TensorArgument* tensor = nullptr;
  problem::TensorShape shape;
};
/// The tensors of TensorMaps, in its order. The last one is the TMA-loaded bias, if any, with its keys as dims; batches
/// or heads that share it have one.
std::array<MappedTensor, TensorMaps::kCount> mapped_tensors(const AttentionProblem& problem,
                                                            device::AttentionArguments& call);

/// Writes the tensor maps of the arguments. A tensor without a map, because TMA needs strides that are multiples of 16
/// bytes, is no longer `aligned` in the arguments: kernels then copy it element by element. It needs a driver.
void write_tensor_maps(const AttentionProblem& problem, const TileShape& shape, ArgumentBytes& arguments);

}  // namespace scoremod::backend::kernels
