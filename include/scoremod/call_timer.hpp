#pragma once

#include <memory>

#include "scoremod/attention.hpp"
#include "scoremod/export.hpp"

namespace scoremod {

/// Measures how long calls of an attention take: on the host by the clock, on a device between two events on the
/// default stream. What was enqueued before start() is not part of it, and start() does not wait for it, so that the
/// device goes on without a gap. Every function throws Error(kEnvironment) with the device's own text.
class SCOREMOD_API CallTimer {
 public:
  explicit CallTimer(const Attention& attention);
  CallTimer(CallTimer&&) noexcept;
  CallTimer& operator=(CallTimer&&) noexcept;
  ~CallTimer();

  void start();
  /// Waits for the calls since start(); milliseconds.
  double stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace scoremod
