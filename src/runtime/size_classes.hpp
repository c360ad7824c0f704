#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "scoremod/problem.hpp"

#include "backend/backend.hpp"
#include "base/fork_mutex.hpp"
#include "planner/plan_task.hpp"
#include "planner/selection.hpp"

namespace scoremod::runtime {

/// Equal for problems of one structure, device and selection whose sizes differ by less than a quarter. The backend
/// that is the fastest for one is about the fastest for the others.
struct SizeClass {
  std::array<std::int64_t, 9> numbers;
  std::vector<const backend::Backend*> backends;
  bool operator==(const SizeClass&) const = default;
};
SizeClass size_class(const AttentionProblem& problem, const planner::Selection& selection, int device);
struct SizeClassHash {
  std::size_t operator()(const SizeClass& size_class) const;
};

/// The fastest plan of a size class.
struct Fastest {
  const backend::Backend* backend = nullptr;
  /// The candidate, where it may run other sizes too, and so may all that runs beside it.
  std::shared_ptr<const planner::Considered> forward = nullptr;
  /// Whether a faster plan has to be built for each size, so that `forward` serves until a size has been called often.
  bool serves = false;
  /// The candidate of a problem with a backward, where `forward` is there.
  std::shared_ptr<const planner::Considered> backward = nullptr;
  /// The class's device, where `forward` is there.
  std::shared_ptr<const backend::DeviceProperties> device = nullptr;
};

/// The fastest of each size class of a structure. A new size then looks at no other candidate or asks no other backend,
/// which takes several times as long as all else. Candidates belong to the plans that they made
/// (RunningPlans::candidates): a process knows many structures, and keeps the kernels of those alone that have plans.
/// Any thread may ask.
class FastestPlans {
 public:
  /// Without a backend where none is known, and without candidates where their plans are gone. Where a plan of some
  /// size was there when it was asked for, plans of other sizes may have been built ahead, too. One that only serves is
  /// then not known for the next kMostLooks sizes.
  Fastest find(const SizeClass& size_class);
  void remember(const SizeClass& size_class, const Fastest& fastest);

  static constexpr int kMostLooks = 32;

 private:
  /// A Fastest that keeps no candidate.
  struct Known {
    const backend::Backend* backend = nullptr;
    std::weak_ptr<const planner::Considered> forward, backward;
    bool serves = false;
    bool has_backward = false;
    std::shared_ptr<const backend::DeviceProperties> device;
  };

  mutable ForkMutex mutex_;
  std::unordered_map<SizeClass, Known, SizeClassHash> found_;
  int looks_ = 0;  ///< sizes yet that look for a plan which was built ahead
};

}  // namespace scoremod::runtime
