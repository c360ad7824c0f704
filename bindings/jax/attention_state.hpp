#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "scoremod/attention.hpp"
#include "scoremod/tensors.hpp"

#include "xla/ffi/api/ffi.h"

namespace scoremod::jax {

/// A compiled attention, and what its calls needed when it was prepared, which suffices them from then on.
struct Prepared {
  std::shared_ptr<const Attention> attention;
  std::size_t forward_workspace = 0, backward_workspace = 0;
};

/// What one custom call of a compiled XLA program keeps: the compiled attention of each device that runs the program.
/// It is made before the program first runs on the device and never while it runs, when a CUDA graph may be recorded.
class AttentionState {
 public:
  /// Makes the attention of options that name a device, too.
  using Make = std::function<std::shared_ptr<const Attention>(const CompileOptions& options)>;

  /// `problem` is a problem's JSON; `options` name the memory, and no device. Attentions come from the process's cache.
  AttentionState(const std::string& problem, CompileOptions options);
  /// The problem has no open sizes; `make` makes its attentions.
  AttentionState(const AttentionProblem& problem, CompileOptions options, Make make);

  /// Makes the attention on a device where it isn't yet. Throws Error.
  void prepare(int device);

  /// The same for calls whose workspace, `needed` of what is prepared, is to be within `given` bytes: XLA has planned
  /// the memory by what the attention needed on another device or in another process. Where what would be chosen
  /// without a limit needs more, it is what is chosen within it; if nothing is, calls allocate.
  void prepare_within(int device, std::size_t Prepared::*needed, std::size_t given);

  /// What was prepared on a device. Throws Error(kBug) for another one.
  Prepared on(int device) const;

  /// tensors_of() the problem: what each buffer of a call must be.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// gradients_of() it, likewise.
  const std::vector<TensorInfo>& gradients() const { return gradients_; }

 private:
  AttentionState(const AttentionProblem& problem, CompileOptions options);
  Prepared made(int device, std::optional<std::size_t> max_workspace) const;

  const Make make_;
  const CompileOptions options_;
  std::vector<TensorInfo> tensors_, gradients_;
  mutable std::mutex mutex_;  ///< devices run their parts of a program in threads of their own
  std::map<int, Prepared> by_device_;
  std::set<int> within_;  ///< devices that prepare_within() has seen
};

/// The state of one platform's calls. XLA's library for the CPU and its plugin for CUDA each have a registry of types,
/// where one number means different types: a number that the one has given must not be shown to the other.
template <class State, MemoryKind kMemory>
class PlatformState : public State {
 public:
  /// Filled in by XLA when Python registers the type.
  inline static xla::ffi::TypeId id = {};
  static constexpr xla::ffi::TypeInfo kInfo = xla::ffi::MakeTypeInfo<PlatformState>();

  /// `rest` is what State's constructor takes beside the problem and the options.
  template <class... Rest>
  PlatformState(std::string problem, CompileOptions options, Rest... rest)
      : State(std::move(problem), in_memory(std::move(options)), rest...) {}

 private:
  static CompileOptions in_memory(CompileOptions options) {
    options.memory = kMemory;
    return options;
  }
};

}  // namespace scoremod::jax
