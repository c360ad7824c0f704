#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "backend/cudnn/graph/attention_graph.hpp"
#include "backend/device_properties.hpp"

namespace scoremod::backend::cudnn {

/// The most operations of a graph, including the attention's own: the size of the arrays in which this build's
/// cudnn-frontend keeps them. It writes past their end unless it is stopped.
int max_operations();

/// How an attempt to build a plan ended. A refusal is cuDNN's NOT_SUPPORTED family; any other failure is an error.
enum class BuildStatus : std::uint8_t { kBuilt, kRefused, kFailed };

/// A finished cuDNN plan. It belongs to the kind of device and the cuDNN version that it was built for. Several threads
/// may execute it at once, each with a handle and a workspace of its own.
class EnginePlan {
 public:
  virtual ~EnginePlan() = default;

  /// Device memory that execute() needs, known before anything is allocated.
  virtual std::size_t workspace_bytes() const = 0;

  /// The Uid of each pointer that execute() takes, in its order. A tensor of the graph that no node reads is not among
  /// them.
  virtual std::span<const std::int64_t> uids() const = 0;

  /// cuDNN's engine and its knobs by cudnn-frontend's name, such as "eng3_k24=36". cuDNN chooses it by the sizes, too.
  virtual const std::string& engine() const = 0;

  /// The engines that cuDNN's heuristics name behind this one, best first; none where the graph named its engine.
  virtual const std::vector<std::string>& next_engines() const = 0;

  /// Enqueues the plan on the handle's stream; allocates nothing on the device and may be captured into a CUDA graph.
  /// Pointers are device pointers in the order of uids(), except by-value tensors and the scale, whose host pointers
  /// are read before this returns. Throws Error(kEnvironment) with cuDNN's own text.
  virtual void execute(void* cudnn_handle, std::span<void* const> pointers, void* workspace) const = 0;

  /// The plan as bytes for load_plan(): compiled kernels, workspace size, and its device. A built plan and a loaded one
  /// give equal bytes.
  virtual std::vector<std::byte> serialize() const = 0;

  /// Takes pointers by Uid; ones that the plan does not take are ignored. Throws Error(kBug) when one is missing.
  void execute(void* cudnn_handle, const std::unordered_map<std::int64_t, void*>& pointers, void* workspace) const;
};

struct BuildOutcome {
  BuildStatus status = BuildStatus::kFailed;
  std::string text;  ///< cuDNN's or the frontend's own words when not built
  std::shared_ptr<EnginePlan> plan;
};

/// The outcome of a build, even if it threw. The frontend throws std::runtime_error for nodes that it does not take,
/// which is a refusal. Nothing else is: a refusal would be remembered, and memory that ran out may be there the next
/// time. So failures of the system become kFailed, and Error, std::bad_alloc and all others pass through.
BuildOutcome outcome_of_build(const std::function<BuildOutcome()>& build);

/// Returns cudnn-frontend's objections to a graph for an architecture, whatever its modifier is, with the cuDNN version
/// that library() has found. Empty if there are none. Needs no device, and takes no turn with builds.
std::string frontend_objection(const AttentionGraph& graph, int compute_capability);

/// Builds a plan with cudnn-frontend for a handle's device: of the engines that cuDNN's heuristics name, best first,
/// the first that builds, or AttentionGraph::engine where it names one. library() must have found cuDNN. Builds, loads
/// and destructions of plans take turns within the process. May crash the process on graphs that cuDNN mishandles:
/// callers pass only patterns and sizes that were verified, or build in a child.
BuildOutcome build_plan(const AttentionGraph& graph, void* cudnn_handle);

/// Builds for a device that need not be there: no handle, no driver (see load_stub_driver()). The plan can be
/// serialized; execute() needs the device.
BuildOutcome build_plan(const AttentionGraph& graph, const DeviceProperties& device);

/// The plan in serialize()'s bytes, ready to run on the handle's device. Throws Error(kEnvironment) when the bytes are
/// damaged, of another format, or built for another kind of device or another version of cuDNN.
std::shared_ptr<EnginePlan> load_plan(std::span<const std::byte> bytes, void* cudnn_handle);

/// cuDNN's properties of a handle's device. Throws Error(kEnvironment) with cuDNN's own text.
DeviceProperties device_properties(void* cudnn_handle);

}  // namespace scoremod::backend::cudnn
