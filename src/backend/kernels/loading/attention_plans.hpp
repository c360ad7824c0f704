#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "scoremod/problem.hpp"

#include "backend/cuda/modules/kernel_module.hpp"
#include "backend/kernels/workspace/call.hpp"
#include "backend/memory_space.hpp"
#include "backend/plan.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::kernels {

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

}  // namespace scoremod::backend::kernels
