#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "scoremod/tensors.hpp"

namespace scoremod::cli {

/// The number of a tensor's elements.
std::int64_t element_count(const TensorInfo& tensor);
/// Dense elements in row-major order, spread to where the tensor's strides put them. The gaps of `memory` stay as they
/// are.
void scatter(const TensorInfo& tensor, std::span<const std::byte> elements, std::span<std::byte> memory);
/// The inverse.
std::vector<std::byte> gather(const TensorInfo& tensor, std::span<const std::byte> memory);

}  // namespace scoremod::cli
