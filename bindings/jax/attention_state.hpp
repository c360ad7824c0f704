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

/// A compiled attention, and the memory that its calls need, fixed when it was prepared.
struct Prepared {
  std::shared_ptr<const Attention> attention;
  std::size_t forward_workspace = 0, backward_workspace = 0;
};

/// The compiled attentions of one custom call of an XLA program, one for each device. Each is made before the program
/// first runs on its device, never during a run, which a CUDA graph may record.
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

  /// Prepares calls with a workspace of at most `given` bytes; `needed` names the member that counts it. XLA planned
  /// that memory by the attention's needs on another device or in another process. If the best choice needs more, one
  /// that fits is chosen; if none fits, calls allocate.
  void prepare_within(int device, std::size_t Prepared::*needed, std::size_t given);

  /// The attention that was prepared on a device. Throws Error(kBug) for another one.
  Prepared on(int device) const;

  /// tensors_of() the problem, which each buffer of a call must match.
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

/// The state of one platform's calls. XLA's library for the CPU and its plugin for CUDA have separate registries, in
/// which one number means different types. A number of one must not be shown to the other.
template <class State, MemoryKind kMemory>
class PlatformState : public State {
 public:
  /// Filled in by XLA when Python registers the type.
  inline static xla::ffi::TypeId id = {};
  static constexpr xla::ffi::TypeInfo kInfo = xla::ffi::MakeTypeInfo<PlatformState>();

  /// `rest` are the arguments of State's constructor after the problem and the options.
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
