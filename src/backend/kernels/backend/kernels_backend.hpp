#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "scoremod/problem.hpp"

#include "backend/backend.hpp"
#include "backend/candidate.hpp"
#include "backend/cuda/modules/kernel_module.hpp"
#include "backend/kernels/family.hpp"
#include "backend/memory_space.hpp"
#include "backend/plan.hpp"
#include "base/canonical_bytes.hpp"
#include "compiler/compiled_problem.hpp"
#include "masks/mask_class.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend {

/// Attention kernels of scoremod's own, generated from the program, on NVIDIA devices from sm_80 on; they need a driver
/// and NVRTC.
const Backend& kernels_backend();

/// Gradients of operands by tiles of scores, in kernels of scoremod's own, beside any engine's backward.
const Backend& operand_kernels_backend();

namespace kernels {

/// The calls of one plan: everything but a device.
class KernelCall {
 public:
  KernelCall(const compiler::CompiledProblem& problem, Direction direction, CallLayout layout);

  const AttentionProblem& problem() const { return problem_; }
  const std::vector<KernelLaunch>& launches() const { return layout_.launches(); }
  CacheLines cache_lines() const { return layout_.cache_lines; }
  Maps maps() const { return layout_.maps; }
  /// Whether a kernel takes tensor maps that it uses.
  bool is_mapped() const;
  /// The size of a workspace that is aligned to 16 bytes.
  std::size_t workspace_bytes() const { return layout_.workspace_bytes(); }

  /// Launches that are made once, and their memory, which stays the caller's; later arguments() point to it.
  const std::vector<KernelLaunch>& launches_once() const { return layout_.launches_once(); }
  std::size_t bytes_once() const { return layout_.bytes_once(); }
  void set_memory_once(void* memory) { once_ = static_cast<std::byte*>(memory); }
  ArgumentBytes arguments_once() const { return common_arguments({}, {}, nullptr); }

  ArgumentBytes arguments(const ForwardTensors& tensors, const CallParameters& parameters, std::byte* workspace) const;
  ArgumentBytes arguments(const BackwardTensors& tensors, const CallParameters& parameters, std::byte* workspace) const;

 private:
  ArgumentBytes common_arguments(const CallParameters& parameters, std::span<const void* const> operands,
                                 std::byte* workspace) const;

  AttentionProblem problem_;
  masks::MaskClass mask_class_;
  std::vector<int> constants_;  ///< of the program, that are arguments
  CallLayout layout_;
  std::byte* once_ = nullptr;
};

/// A tensor of a call, and its sizes as its map has them.
struct MappedTensor {
  device::TensorArgument* tensor = nullptr;
  problem::TensorShape shape;
};
/// The tensors of TensorMaps, in its order. The last one is the TMA-loaded bias, if any, with its keys as dims; batches
/// or heads that share it have one. Of FP8 it is v^T, with its keys as dims, too.
std::array<MappedTensor, TensorMaps::kCount> mapped_tensors(const AttentionProblem& problem,
                                                            device::AttentionArguments& call);

/// Writes the tensor maps of the call's arguments, and to `aligned` of a tensor that it has one. A tensor has none
/// whose strides are no multiples of 16 bytes, or whose rows are the same memory. Where maps are expected it is no
/// longer `aligned`: kernels then copy it element by element. It needs a driver.
void write_tensor_maps(const KernelCall& call, ArgumentBytes& arguments);

/// Modules of kernels in the context that was current when they were loaded, which the plans of all sizes share. Any
/// thread may ask.
class LoadedModules {
 public:
  /// `images` are what cuda::compile_kernels() made. Throws Error(kEnvironment) with the driver's text.
  explicit LoadedModules(const std::vector<std::string>& images);
  ~LoadedModules();
  LoadedModules(const LoadedModules&) = delete;
  LoadedModules& operator=(const LoadedModules&) = delete;

  /// The id of the context that they are loaded in.
  std::uint64_t context() const { return context_; }
  /// The kernel that a launch names, which may have the launch's shared memory from then on.
  cuda::KernelModule::Kernel kernel(const KernelLaunch& launch);

  /// Keeps memory that calls of a plan which is gone may still read: it is freed after the modules, whose unloading
  /// waits for these calls.
  void keep_until_unloaded(std::shared_ptr<const OwnedMemory> memory);
  /// Whether so much is kept that the next plan should have modules of its own.
  bool keeps_much() const;

 private:
  struct Found {
    cuda::KernelModule::Kernel kernel = nullptr;
    std::size_t shared_bytes = 0;  ///< that it may have
  };
  cuda::KernelModule::Kernel find(const std::string& name) const;

  std::uint64_t context_ = 0;
  std::vector<std::unique_ptr<cuda::KernelModule>> modules_;
  mutable std::mutex mutex_;  ///< guards the rest
  std::unordered_map<std::string, Found> found_;
  std::vector<std::shared_ptr<const OwnedMemory>> kept_;
  std::size_t kept_bytes_ = 0;
};

/// Plans of calls on the device that is current; `modules` are of the calls' kernels, at any sizes. They write o and
/// lse, or dq, dk and dv, or the gradients of operands, as far as the kernels do. They allocate nothing, may be
/// captured into a CUDA graph, and give the same bits each time. The host waits for nothing, but a captured call for
/// block masks that the plan itself has just launched. Throw Error(kEnvironment) with the driver's text.
std::unique_ptr<ForwardPlan> forward_plan(KernelCall&& call, std::shared_ptr<LoadedModules> modules);
std::unique_ptr<BackwardPlan> backward_plan(KernelCall&& call, std::shared_ptr<LoadedModules> modules);

/// Kernels as NVRTC compiled them, in one module or several.
class Images final : public Artifact {
 public:
  explicit Images(std::vector<std::string> modules) : modules_(std::move(modules)) {}
  /// Reads the bytes of serialize(). Throws Error(kEnvironment) for others.
  explicit Images(std::span<const std::byte> bytes);
  std::vector<std::byte> serialize() const override;
  const std::vector<std::string>& modules() const { return modules_; }

  /// The modules in the current context, which is `context` where that is known: loaded by the first who asks, and
  /// shared by the plans of all sizes. Throws Error(kEnvironment) with the driver's text.
  std::shared_ptr<LoadedModules> loaded(std::optional<std::uint64_t> context) const;

 private:
  std::vector<std::string> modules_;
  mutable std::mutex mutex_;
  mutable std::map<std::uint64_t, std::shared_ptr<LoadedModules>> loaded_;  ///< by context
};

/// The kernels of one variant, as the planner builds, keeps and runs them.
class KernelsRecipe final : public Recipe {
 public:
  /// `family` is that of the variant, and `targets` are as in Work. A build whose registers spill is refused, unless
  /// the variant may: a smaller one is faster.
  KernelsRecipe(compiler::CompiledProblem problem, Direction direction, const KernelFamily& family,
                std::shared_ptr<const Variant> variant, std::vector<OperandTarget> targets = {});

  BuildResult build(const Target& target) const override;
  std::shared_ptr<const Artifact> load(std::span<const std::byte> bytes, const Target& target) const override;
  ExecutablePlan plan(std::shared_ptr<const Artifact> artifact, const PlanOptions& options) const override;
  bool needs_context() const override { return false; }
  std::optional<ExecutablePlan> plan_at_sizes_of(const compiler::CompiledProblem& problem,
                                                 const DeviceProperties& device, const Artifact& artifact,
                                                 const PlanOptions& options) const override;
  std::optional<ExecutablePlan> plan_on_few_blocks(const Artifact& artifact) const override;

  /// The launches of the plan of other sizes, which has this recipe's kernels; nothing where there is no such plan.
  std::optional<CallLayout> layout_at_sizes_of(const compiler::CompiledProblem& problem,
                                               const DeviceProperties& device) const;

  /// Writes the facts that decide build()'s refusals, beside the kernels' text and the architecture. Loads NVRTC.
  void write_refusal_terms(CanonicalWriter& to) const;

  KernelSource source() const { return variant_->source(work()); }

  const compiler::CompiledProblem& problem() const { return problem_; }
  Direction direction() const { return direction_; }
  const Branches& branches() const { return branches_; }
  const Variant& variant() const { return *variant_; }
  const std::vector<OperandTarget>& targets() const { return targets_; }
  Work work() const { return {problem_, direction_, targets_}; }

 private:
  /// This variant among all of the family for other work; null if it has none such.
  std::shared_ptr<const Variant> same_variant(const Work& work, const DeviceProperties& device) const;

  /// The artifact's kernels with these launches, which are of the problem.
  ExecutablePlan plan_of(const compiler::CompiledProblem& problem, CallLayout layout, const Artifact& artifact,
                         const PlanOptions& options) const;

  compiler::CompiledProblem problem_;
  Branches branches_;  ///< of the problem
  Direction direction_;
  const KernelFamily& family_;
  std::shared_ptr<const Variant> variant_;
  std::vector<OperandTarget> targets_;
};

/// The most bytes that one of the kernels keeps in memory for want of registers, by what ptxas says of them.
std::int64_t register_spill_bytes(const std::string& report);
/// Whether products of warpgroups do not run beside other work, by what ptxas says.
bool serializes_products(const std::string& report);

}  // namespace kernels

}  // namespace scoremod::backend
