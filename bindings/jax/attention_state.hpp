#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "scoremod/attention.hpp"
#include "scoremod/tensors.hpp"

#include "xla/ffi/api/ffi.h"

namespace scoremod::jax {

/// What one custom call of a compiled XLA program keeps: the compiled attention, made when XLA instantiates the call
/// and not in its first execution.
struct AttentionState {
  /// Filled in by XLA when Python registers the type.
  static xla::ffi::TypeId id;
  static const xla::ffi::TypeInfo kInfo;

  std::shared_ptr<const Attention> attention;
  std::vector<TensorInfo> tensors;  ///< tensors_of(attention->problem()): what each buffer of a call must be
};

/// Compiles the attention of a custom call. Calls of one process whose texts are equal share one compiled attention for
/// as long as any of them lives. `problem` is a problem's JSON, `backend` a backend's name or empty.
xla::ffi::ErrorOr<std::unique_ptr<AttentionState>> instantiate(std::string_view problem, std::string_view backend);

}  // namespace scoremod::jax
