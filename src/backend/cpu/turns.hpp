#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace scoremod::backend::cpu {

/// A count that one thread raises and others wait for. Writes before a raise are visible after the wait for it.
class Turn {
 public:
  void raise(std::int64_t value) { value_.store(value, std::memory_order_release); }

  /// Waits until the count is at least `value`; false if `cancelled` was set meanwhile.
  bool wait(std::int64_t value, const std::atomic<bool>& cancelled) const {
    while (value_.load(std::memory_order_acquire) < value) {
      if (cancelled.load(std::memory_order_relaxed)) return false;
      std::this_thread::yield();
    }
    return true;
  }

 private:
  std::atomic<std::int64_t> value_{0};
};

}  // namespace scoremod::backend::cpu
