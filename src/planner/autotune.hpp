#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "planner/plan_task.hpp"

namespace scoremod::planner {

/// Measures the candidates that may run on the current device, and stores the fastest in the plan store, so that the
/// next process measures nothing.
class Autotune {
 public:
  using Entry = std::pair<Considered*, backend::ExecutablePlan>;

  Autotune(const compiler::CompiledProblem& problem, const backend::Task& task, const Request& request)
      : problem_(problem), task_(task), request_(request) {}

  /// A candidate that was built and is right. It must outlive this.
  void add(Considered& considered, backend::ExecutablePlan plan) {
    entries_.emplace_back(&considered, std::move(plan));
  }

  /// The fastest of those added: the only one, the stored winner of the same candidates, or else the winner of a
  /// measurement with random inputs, which is then stored. Writes Considered::measured_milliseconds. Tensors of more
  /// than 4 GiB are not measured: then it is the first one. Empty when there is none.
  std::optional<Entry> fastest();

 private:
  Bytes key() const;
  std::optional<Entry> stored(const Bytes& key);
  void measure();

  const compiler::CompiledProblem& problem_;
  const backend::Task& task_;
  const Request& request_;
  std::vector<Entry> entries_;
};

}  // namespace scoremod::planner
