#pragma once

#include <array>

#include "scoremod/problem.hpp"

#include "backend/kernels/workspace/call_layout.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::kernels {

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
void write_tensor_maps(const AttentionProblem& problem, CacheLines lines, ArgumentBytes& arguments);

}  // namespace scoremod::backend::kernels
