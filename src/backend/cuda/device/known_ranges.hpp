#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace scoremod::backend::cuda {

/// Memory that was last seen to be a device's: allocations, or what of them lies in the same 2 MiB. CUDA takes about a
/// microsecond to say whose an address is, which would be a large part of what a call costs the host. Frameworks cut
/// their tensors from a few large allocations, so that a new tensor mostly begins in memory that is known.
///
/// CUDA separates the addresses of devices from the host's, so an address that was freed since does not become host
/// memory. It maps memory by 2 MiB or multiples of it ("Virtual Memory Management" in the CUDA driver API): more of a
/// range of addresses may be another device's, or nobody's.
class KnownRanges {
 public:
  bool contains(const void* data, int device) const {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    const Range& range = ranges_[place_of(address)];
    // Addresses below `begin` wrap around to large distances.
    return range.device == device && address - range.begin < range.bytes;
  }

  /// The allocation of so many bytes from `begin` on, in which `data` lies.
  void add(const void* data, std::uintptr_t begin, std::size_t bytes, int device) {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    const std::uintptr_t first = std::max(begin, address >> kBlockBits << kBlockBits);
    const std::uintptr_t end = std::min(begin + bytes, ((address >> kBlockBits) + 1) << kBlockBits);
    ranges_[place_of(address)] = {first, end - first, device};
  }

 private:
  struct Range {
    std::uintptr_t begin = 0;
    std::size_t bytes = 0;
    int device = -1;
  };
  static constexpr int kBlockBits = 21, kPlaceBits = 9;

  /// Blocks that are in use differ in high bits.
  static std::size_t place_of(std::uintptr_t address) {
    const auto block = static_cast<std::uint64_t>(address) >> kBlockBits;
    return static_cast<std::size_t>(block * 0x9e3779b97f4a7c15u >> (64 - kPlaceBits));
  }

  std::array<Range, std::size_t{1} << kPlaceBits> ranges_{};
};

}  // namespace scoremod::backend::cuda
