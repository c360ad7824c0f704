#include "strided_copy.hpp"

#include <cstring>

namespace scoremod::cli {
namespace {

/// Calls body(offset in elements) for each element in row-major order.
template <class Body>
void for_each_offset(const TensorInfo& tensor, const Body& body) {
  std::vector<std::int64_t> index(tensor.shape.size(), 0);
  std::int64_t offset = 0;
  for (std::int64_t left = element_count(tensor); left > 0; --left) {
    body(offset);
    for (std::size_t d = index.size(); d-- > 0;) {
      offset += tensor.strides[d];
      if (++index[d] < tensor.shape[d]) break;
      offset -= tensor.strides[d] * tensor.shape[d];
      index[d] = 0;
    }
  }
}

}  // namespace

std::int64_t element_count(const TensorInfo& tensor) {
  std::int64_t count = 1;
  for (const std::int64_t size : tensor.shape) count *= size;
  return count;
}

std::vector<std::byte> gather(const TensorInfo& tensor, std::span<const std::byte> memory) {
  const std::size_t bytes = size_of(tensor.dtype);
  std::vector<std::byte> elements(static_cast<std::size_t>(element_count(tensor)) * bytes);
  std::byte* to = elements.data();
  for_each_offset(tensor, [&](std::int64_t offset) {
    std::memcpy(to, memory.data() + static_cast<std::size_t>(offset) * bytes, bytes);
    to += bytes;
  });
  return elements;
}

}  // namespace scoremod::cli
