#pragma once

#include <string>
#include <utility>

#include "scoremod/attention.hpp"

#include "xla/ffi/api/ffi.h"

namespace scoremod::jax {

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
