#include "runtime/buffer_check.hpp"

#include <algorithm>

#include "base/fail.hpp"

namespace scoremod::runtime {
namespace {

void check_memory(const TensorUse& tensor, const backend::MemorySpace& memory) {
  const std::size_t needed = tensor.needed_bytes();
  if (tensor.data == nullptr) {
    fail_argument("'", tensor.name, "' is missing: expected ", needed, " bytes of memory, found a null pointer");
  }
  if (tensor.bytes < needed) {
    fail_argument("'", tensor.name, "' is too small: expected at least ", needed, " bytes, found ", tensor.bytes,
                  "; give it memory for every element that the problem describes");
  }
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data);
  const std::size_t alignment = std::max(tensor.alignment, memory.alignment());
  if (address % alignment != 0) {
    fail_argument("'", tensor.name, "' is misaligned: expected an address that is a multiple of ", alignment,
                  ", found one that leaves ", address % alignment);
  }
  if (const std::string objection = memory.objection(tensor.data); !objection.empty()) {
    fail_argument("'", tensor.name, "' lies in the wrong memory: expected ", to_string(memory.kind()),
                  " memory, found ", objection);
  }
}

/// Addresses of the bytes [begin, end).
struct ByteRange {
  std::uintptr_t begin = 0, end = 0;
};

ByteRange range_of(const TensorUse& tensor) {
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.data);
  return {begin, begin + tensor.needed_bytes()};
}

/// Calls body(address) for every element until it returns true; returns whether it did.
template <class Body>
bool any_element(const TensorUse& tensor, const Body& body) {
  const std::size_t rank = tensor.shape.size();
  std::vector<std::int64_t> index(rank, 0);
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.data);
  std::int64_t offset = 0;
  while (true) {
    if (body(begin + static_cast<std::uintptr_t>(offset) * tensor.element_bytes)) return true;
    std::size_t d = rank;
    while (d > 0) {
      --d;
      offset += tensor.strides[d];
      if (++index[d] < tensor.shape[d]) break;
      offset -= tensor.strides[d] * tensor.shape[d];
      index[d] = 0;
      if (d == 0) return false;
    }
    if (rank == 0) return false;
  }
}

/// Whether two tensors have a byte in common. Exact, so that tensors which interleave in one allocation are told from
/// tensors that overlap; memory of one bit for each byte that both extents cover is used only when they do.
bool share_bytes(const TensorUse& x, const TensorUse& y) {
  const ByteRange a = range_of(x);
  const ByteRange b = range_of(y);
  const ByteRange common{std::max(a.begin, b.begin), std::min(a.end, b.end)};
  if (common.begin >= common.end) return false;
  std::vector<bool> taken(common.end - common.begin);
  const auto clip = [&](std::uintptr_t address, const TensorUse& tensor) {
    return ByteRange{std::max(address, common.begin), std::min(address + tensor.element_bytes, common.end)};
  };
  any_element(x, [&](std::uintptr_t address) {
    const ByteRange bytes = clip(address, x);
    for (std::uintptr_t i = bytes.begin; i < bytes.end; ++i) taken[i - common.begin] = true;
    return false;
  });
  return any_element(y, [&](std::uintptr_t address) {
    const ByteRange bytes = clip(address, y);
    for (std::uintptr_t i = bytes.begin; i < bytes.end; ++i) {
      if (taken[i - common.begin]) return true;
    }
    return false;
  });
}

}  // namespace

std::size_t TensorUse::needed_bytes() const {
  std::int64_t last = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) last += (shape[d] - 1) * strides[d];
  return (static_cast<std::size_t>(last) + 1) * element_bytes;
}

void check_buffers(std::span<const TensorUse> tensors, const backend::MemorySpace& memory) {
  for (const TensorUse& tensor : tensors) check_memory(tensor, memory);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (std::size_t j = i + 1; j < tensors.size(); ++j) {
      const bool written = tensors[i].written || tensors[j].written;
      if (!written || !share_bytes(tensors[i], tensors[j])) continue;
      const TensorUse& output = tensors[j].written ? tensors[j] : tensors[i];
      const TensorUse& other = tensors[j].written ? tensors[i] : tensors[j];
      fail_argument("'", output.name, "' overlaps '", other.name,
                    "': expected memory of its own for everything that is written");
    }
  }
}

}  // namespace scoremod::runtime
