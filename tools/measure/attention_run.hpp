#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "scoremod/attention.hpp"
#include "scoremod/problem_buffers.hpp"
#include "scoremod/staging.hpp"

#include "bench_case.hpp"
#include "case_inputs.hpp"

namespace scoremod::measure {

/// A tensor that a call writes.
using RunOutput = OutputTensor;

/// A case with everything that calls need, where the attention wants it, so that run() is the call alone. On a device
/// there are several sets of the same tensors: calls that take them in turn find nothing of theirs in its caches. A
/// backward case has run its forward in every set.
class AttentionRun {
 public:
  AttentionRun(const BenchCase& bench_case, const CompileOptions& options, CaseInputs inputs);

  const BenchCase& bench_case() const { return case_; }
  const Attention& attention() const { return attention_; }
  bool on_device() const { return attention_.memory() != MemoryKind::kHost; }
  std::size_t sets() const { return sets_.size(); }
  std::size_t workspace_bytes() const;

  /// Runs the call, or enqueues it on stream().
  void run(std::size_t set);
  void wait() { sets_.front().staging.wait(); }
  /// A device's stream for everything that is measured.
  void* stream() { return sets_.front().staging.stream(); }

  /// The inputs of every call, in host memory.
  InputBuffers inputs() const;
  /// The arguments of a set's call, in the attention's memory; those of the case's direction are complete.
  const ForwardArgs& forward_args(std::size_t set) const { return sets_[set].forward; }
  const BackwardArgs& backward_args(std::size_t set) const { return sets_[set].backward; }
  /// More scratch memory there.
  Buffer scratch(std::size_t bytes) { return sets_.front().staging.workspace(bytes); }

  /// The outputs of a set; before the first call each is NaN. Valid until the next call of this function, or of run()
  /// on the host.
  std::span<const RunOutput> fetch(std::size_t set);

 private:
  struct Set {
    explicit Set(const Attention& attention) : staging(attention) {}
    Staging staging;
    ForwardArgs forward;
    BackwardArgs backward;
    Buffer workspace;
  };

  void add_set();

  BenchCase case_;
  Attention attention_;
  CaseInputs inputs_;
  ProblemBuffers buffers_;
  std::vector<Set> sets_;
};

}  // namespace scoremod::measure
