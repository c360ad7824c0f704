#include "runtime/buffer_check.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "base/fail.hpp"
#include "runtime/shared_bytes.hpp"

namespace scoremod::runtime {
namespace {

std::string name_of(const TensorUse& tensor) { return concat("'", tensor.before_name, tensor.name, "'"); }

void check_memory(const TensorUse& tensor, std::size_t needed, const backend::MemorySpace& memory,
                  std::size_t space_alignment, int device) {
  if (tensor.data == nullptr) {
    fail_argument(name_of(tensor), " is missing: expected ", needed, " bytes of memory, found a null pointer");
  }
  if (tensor.bytes < needed) {
    fail_argument(name_of(tensor), " is too small: expected at least ", needed, " bytes, found ", tensor.bytes,
                  "; give it memory for every element that the problem describes");
  }
  const auto address = reinterpret_cast<std::uintptr_t>(tensor.data);
  const std::size_t alignment = std::max(tensor.alignment, space_alignment);
  if (address % alignment != 0) {
    fail_argument(name_of(tensor), " is misaligned: expected an address that is a multiple of ", alignment,
                  ", found one that leaves ", address % alignment);
  }
  if (const std::string objection = memory.objection(tensor.data, device); !objection.empty()) {
    fail_argument(name_of(tensor), " lies in the wrong memory: expected ", to_string(memory.kind()), " memory, found ",
                  objection);
  }
}

/// Addresses of the bytes [begin, end).
struct ByteRange {
  std::uintptr_t begin = 0, end = 0;
};

ByteRange range_of(const TensorUse& tensor, std::size_t needed) {
  const auto begin = reinterpret_cast<std::uintptr_t>(tensor.data);
  return {begin, begin + needed};
}

bool meet(const ByteRange& a, const ByteRange& b) {
  const bool are_some = a.begin < a.end && b.begin < b.end;
  return are_some && a.begin < b.end && b.begin < a.end;
}

}  // namespace

std::size_t TensorUse::needed_bytes() const {
  std::int64_t last = 0;
  if (std::find(shape.begin(), shape.begin() + rank, 0) != shape.begin() + rank) return 0;
  for (std::size_t d = 0; d < rank; ++d) last += (shape[d] - 1) * strides[d];
  return (static_cast<std::size_t>(last) + 1) * element_bytes;
}

void check_buffers(std::span<const TensorUse> tensors, const backend::MemorySpace& memory) {
  const int device = memory.current_device();
  const std::size_t alignment = memory.alignment();
  std::vector<ByteRange> ranges;
  ranges.reserve(tensors.size());
  for (const TensorUse& tensor : tensors) {
    const std::size_t needed = tensor.needed_bytes();
    // A tensor without elements lies anywhere.
    if (needed > 0) check_memory(tensor, needed, memory, alignment, device);
    ranges.push_back(range_of(tensor, needed));
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (std::size_t j = i + 1; j < tensors.size(); ++j) {
      if (!(tensors[i].written || tensors[j].written) || !meet(ranges[i], ranges[j])) continue;
      if (!share_bytes(tensors[i], tensors[j])) continue;
      const TensorUse& output = tensors[j].written ? tensors[j] : tensors[i];
      const TensorUse& other = tensors[j].written ? tensors[i] : tensors[j];
      fail_argument(name_of(output), " overlaps ", name_of(other),
                    ": expected memory of its own for everything that is written");
    }
  }
}

}  // namespace scoremod::runtime
