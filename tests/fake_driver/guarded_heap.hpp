#pragma once

#include <cstdint>

namespace scoremod::test {

/// While it lives, each allocation of the calling thread ends where memory ends: what reads beyond it finds none.
class GuardedHeap {
 public:
  GuardedHeap();
  ~GuardedHeap();
  GuardedHeap(const GuardedHeap&) = delete;
  GuardedHeap& operator=(const GuardedHeap&) = delete;

  /// Allocations that ended so since the program began, and those for which there was no room.
  static std::int64_t guarded();
  static std::int64_t left_out();
};

}  // namespace scoremod::test
