#pragma once

#include <memory>

#include "scoremod/attention.hpp"
#include "scoremod/export.hpp"
#include "scoremod/sizes.hpp"

namespace scoremod {

/// A problem that was compiled once for all sizes that it leaves open: a server's batches and growing caches. Calls may
/// run at the same time from several threads. One that was moved from can be destroyed and assigned to; its other
/// functions throw Error(kInvalidArgument).
class SCOREMOD_API OpenAttention {
 public:
  /// Compiles the program, its mask and its derivative. A problem whose sizes are all given is fine, too. Throws
  /// Error(kInvalidArgument) for mistakes that no sizes mend. Backends are asked when sizes are known.
  /// SCOREMOD_BACKENDS, SCOREMOD_NEW_SIZES, SCOREMOD_AUTOTUNE and SCOREMOD_MAX_WORKSPACE are read here, for all sizes.
  static OpenAttention compile(const AttentionProblem& problem, const CompileOptions& options = {});

  OpenAttention(OpenAttention&&) noexcept;
  OpenAttention& operator=(OpenAttention&&) noexcept;
  ~OpenAttention();

  /// The problem as it was given.
  const AttentionProblem& problem() const;

  /// The attention of these sizes. The most recent 1024 are kept. The first of a structure builds kernels; one of other
  /// sizes runs the same kernels, and takes microseconds. Throws what problem_at() and Attention::compile() throw.
  std::shared_ptr<const Attention> at(const Sizes& sizes) const;

  /// at(sizes)->forward(args, workspace).
  void forward(const Sizes& sizes, const ForwardArgs& args, Buffer workspace = {}) const;
  /// at(sizes)->backward(args, workspace).
  void backward(const Sizes& sizes, const BackwardArgs& args, Buffer workspace = {}) const;

 private:
  struct State;
  explicit OpenAttention(std::unique_ptr<State> state);
  const State& state() const;
  std::unique_ptr<State> state_;
};

}  // namespace scoremod
