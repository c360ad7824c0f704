#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "backend/cudnn/graph/attention_graph.hpp"
#include "backend/device_properties.hpp"
#include "base/bytes.hpp"

namespace scoremod::backend::cudnn {

/// Raise it with every change of how an AttentionGraph becomes cuDNN's graph (engine.cpp), because plans that were
/// stored before then compute something else.
inline constexpr int kPlanRevision = 2;

/// The properties of a device that decide which plans are built for it and run on it. They are equal for every device
/// of one model, so that a plan built elsewhere is found. Parts of a device (MIG) differ in their multiprocessors.
struct PlanDevice {
  int compute_capability = 0;  ///< 90 for sm_90
  std::string name;            ///< "NVIDIA H200"
  int multiprocessors = 0;
  std::int64_t shared_memory_per_block = 0;  ///< bytes, the most that a kernel may opt in to
  std::int64_t l2_cache_bytes = 0;

  bool operator==(const PlanDevice&) const = default;
};

PlanDevice plan_device(const DeviceProperties& device);

/// Everything that decides a stored plan: two plans of equal keys are interchangeable. Runtime arguments are not in it:
/// pointers, the scale, the values of scalars, offsets.
struct PlanKey {
  AttentionGraph graph;
  PlanDevice device;
  std::size_t cudnn_version = 0;  ///< as cudnnGetVersion() gives it: 91900 is 9.19.0
  std::size_t frontend_version;   ///< cudnn-frontend's, which turned the graph into cuDNN's: 12300 is 1.23.0
  std::string library_version;    ///< scoremod's
  int revision = kPlanRevision;

  /// Versions are those of this library.
  PlanKey();

  bool operator==(const PlanKey&) const = default;
};

/// The key of a plan that this process has loaded: it stays on its device and in its CUDA context.
struct LoadedPlanKey {
  PlanKey plan;
  int device_ordinal = 0;
  std::uint64_t context = 0;  ///< cuda::current_context()

  bool operator==(const LoadedPlanKey&) const = default;
};

/// Bytes that are equal exactly when the keys are (and tell 0 from -0, and NaNs, by their bits). Values with names go
/// in by name, so that a value added to an enum changes no key.
Bytes canonical_bytes(const PlanKey& key);
Bytes canonical_bytes(const LoadedPlanKey& key);

/// "sm_90 NVIDIA H200": the device in a store's files.
std::string architecture_text(const PlanDevice& device);
/// "forward bf16 b4 h16/16 s4096x4096 d128/128, 3 modifier nodes": the plan in a store's files.
std::string plan_label(const AttentionGraph& graph);

}  // namespace scoremod::backend::cudnn
