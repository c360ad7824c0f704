#pragma once

#include <memory>

#include "scoremod/attention.hpp"
#include "scoremod/export.hpp"

namespace scoremod {

/// Measures how long calls of an attention take: on the host by the clock, on a device between two events on a stream.
/// Work that was enqueued before start() is not counted, and start() does not wait for it, so the device has no gap.
/// Every function throws Error(kEnvironment) with the device's own text.
class SCOREMOD_API CallTimer {
 public:
  /// CUDA: `stream` is the cudaStream_t of the calls; null is the default stream. The host ignores it.
  explicit CallTimer(const Attention& attention, void* stream = nullptr);
  CallTimer(CallTimer&&) noexcept;
  CallTimer& operator=(CallTimer&&) noexcept;
  ~CallTimer();

  void start();
  /// Waits for the calls since start(); milliseconds.
  double stop();

 private:
  struct State;
  State& state();
  std::unique_ptr<State> state_;
};

}  // namespace scoremod
