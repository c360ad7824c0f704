#pragma once

#include <map>
#include <mutex>

#include "scoremod/problem.hpp"

#include "backend/backend.hpp"
#include "base/bytes.hpp"
#include "planner/selection.hpp"

namespace scoremod::runtime {

/// Equal for problems of one structure, device and selection whose sizes differ by less than a quarter. The backend
/// that is the fastest of one is about as fast as any for the others.
Bytes size_class(const AttentionProblem& problem, const planner::Selection& selection, int device);

/// The fastest backend of each size class of a structure: a new size then asks no other one, which takes as long as the
/// rest of its planning. Any thread may ask.
class FastestBackends {
 public:
  /// Null where none is known.
  const backend::Backend* find(const Bytes& size_class) const;
  void remember(const Bytes& size_class, const backend::Backend* fastest);

 private:
  mutable std::mutex mutex_;
  std::map<Bytes, const backend::Backend*> found_;
};

}  // namespace scoremod::runtime
