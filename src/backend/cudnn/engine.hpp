#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "backend/cudnn/attention_graph.hpp"

namespace scoremod::backend::cudnn {

/// How an attempt to build a plan ended. A refusal is cuDNN's NOT_SUPPORTED family; any other failure is an error.
enum class BuildStatus : std::uint8_t { kBuilt, kRefused, kFailed };

/// A finished cuDNN plan. It belongs to the device and the cuDNN version that it was built for.
class EnginePlan {
 public:
  virtual ~EnginePlan() = default;
  virtual std::size_t workspace_bytes() const = 0;
  /// Enqueues the plan on the handle's stream. Pointers are device pointers, but for by-value tensors and the scale:
  /// host pointers. Throws Error(kEnvironment) with cuDNN's own text.
  virtual void execute(void* cudnn_handle, std::unordered_map<std::int64_t, void*>& pointers,
                       void* workspace) const = 0;
};

struct BuildOutcome {
  BuildStatus status = BuildStatus::kFailed;
  std::string text;  ///< cuDNN's or the frontend's own words when not built
  std::shared_ptr<EnginePlan> plan;
};

/// Builds a plan with cudnn-frontend. This unit alone includes cudnn_frontend.h. load_cudnn() must have succeeded.
/// May crash the process on graphs that cuDNN mishandles: callers pass only forms and sizes that were verified, or
/// build in a child.
BuildOutcome build_plan(const AttentionGraph& graph, void* cudnn_handle);

}  // namespace scoremod::backend::cudnn
