#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "scoremod/attention.hpp"
#include "scoremod/tensors.hpp"

#include "xla/ffi/api/ffi.h"

namespace scoremod::jax {

/// What one custom call of a compiled XLA program keeps: the compiled attention of each device that runs the program.
/// It is made before the program first runs on the device and never while it runs, when a CUDA graph may be recorded.
class AttentionState {
 public:
  /// `problem` is a problem's JSON; `backends` are CompileOptions' with commas between them.
  AttentionState(std::string problem, const std::string& backends, MemoryKind memory);

  /// The attention on a device, from the process's cache, which compiles it where it isn't yet. Throws Error.
  const Attention& prepare(int device);

  /// The attention on a device that was prepared. Throws Error(kBug) for another one.
  const Attention& on(int device) const;

  /// tensors_of() the problem: what each buffer of a call must be.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  /// gradients_of() it, likewise.
  const std::vector<TensorInfo>& gradients() const { return gradients_; }

 private:
  const std::string problem_;
  const std::vector<std::string> backends_;
  const MemoryKind memory_;
  std::vector<TensorInfo> tensors_, gradients_;
  mutable std::mutex mutex_;  ///< devices run their parts of a program in threads of their own
  std::map<int, std::shared_ptr<const Attention>> by_device_;
};

/// The state of one platform's calls. XLA's library for the CPU and its plugin for CUDA each have a registry of types,
/// where one number means different types: a number that the one has given must not be shown to the other.
template <MemoryKind kMemory>
class PlatformState : public AttentionState {
 public:
  /// Filled in by XLA when Python registers the type.
  inline static xla::ffi::TypeId id = {};
  static constexpr xla::ffi::TypeInfo kInfo = xla::ffi::MakeTypeInfo<PlatformState>();

  PlatformState(std::string problem, const std::string& backends)
      : AttentionState(std::move(problem), backends, kMemory) {}
};

}  // namespace scoremod::jax
