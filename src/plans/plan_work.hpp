#pragma once

#include <chrono>
#include <cstdint>

#include "scoremod/cache.hpp"

namespace scoremod::plans {

enum class WorkKind : std::uint8_t { kBuild, kLoad, kTrial };

/// Adds the time of its life to the process's count of this kind. Work within other work of the same thread counts as
/// part of that: a trial's builds are the trial's.
class CountedWork {
 public:
  explicit CountedWork(WorkKind kind);
  ~CountedWork();
  CountedWork(const CountedWork&) = delete;
  CountedWork& operator=(const CountedWork&) = delete;

  /// There was nothing to do: it is not counted, and later work is not part of it.
  void forget();

 private:
  WorkKind kind_;
  bool outermost_;
  std::chrono::steady_clock::time_point start_;
};

PlanWork plan_work(WorkKind kind);

}  // namespace scoremod::plans
