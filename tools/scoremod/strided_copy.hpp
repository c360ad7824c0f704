#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "scoremod/tensors.hpp"

namespace scoremod::cli {

/// The number of a tensor's elements.
std::int64_t element_count(const TensorInfo& tensor);
/// The elements in row-major order, dense.
std::vector<std::byte> gather(const TensorInfo& tensor, std::span<const std::byte> memory);

}  // namespace scoremod::cli
