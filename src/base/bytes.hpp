#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace scoremod {

using Bytes = std::vector<std::byte>;

/// FNV-1a, 64 bits (Fowler, Noll, Vo; draft-eastlake-fnv). Every step is a bijection of the state, so two texts of one
/// length that differ in a single byte never have the same hash. It tells accidents, not attacks.
inline std::uint64_t fnv1a(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3ull;
  return hash;
}

}  // namespace scoremod
