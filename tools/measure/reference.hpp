#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "attention_run.hpp"

namespace scoremod::measure {

/// Another implementation of a case, measured beside scoremod's.
class Reference {
 public:
  virtual ~Reference() = default;
  /// Computes the case, or enqueues it on the default stream of a device. If writes_outputs(), it reads and writes the
  /// tensors of this set of the AttentionRun.
  virtual void run(std::size_t set) = 0;
  /// Whether it computes the same thing, into the same places.
  virtual bool writes_outputs() const = 0;
  /// Called before the other implementation is timed: time to put threads to sleep.
  virtual void rest() {}
};

/// The reference of a case, which lives no longer than the run; null where the case has none. May throw Error.
using MakeReference = std::function<std::unique_ptr<Reference>(const BenchCase& bench_case, AttentionRun& run)>;

}  // namespace scoremod::measure
