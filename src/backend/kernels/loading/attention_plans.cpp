#include "backend/kernels/loading/attention_plans.hpp"

#include <cstdint>
#include <memory>
#include <utility>

#include "backend/cuda/context.hpp"
#include "backend/cuda/cuda_memory.hpp"
#include "backend/cuda/kernel_module.hpp"
#include "backend/cuda/own_stream.hpp"
#include "backend/cuda/workspace_alignment.hpp"
#include "backend/kernels/loading/tensor_maps.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::kernels {
namespace {

/// The kernels of a call in the device's memory.
class LoadedKernels {
 public:
  LoadedKernels(std::shared_ptr<LoadedModules> modules, KernelCall call)
      : modules_(std::move(modules)), call_(std::move(call)) {
    for (const KernelLaunch& launch : call_.launches()) loaded_.push_back(modules_->kernel(launch));
    launch_once();
  }

  /// Calls on other streams may still be running.
  ~LoadedKernels() {
    if (once_ != nullptr) modules_->keep_until_unloaded(std::move(once_));
  }
  LoadedKernels(const LoadedKernels&) = delete;
  LoadedKernels& operator=(const LoadedKernels&) = delete;

  std::size_t workspace_bytes() const { return cuda::with_room_to_align(call_.workspace_bytes()); }

  template <class Tensors>
  void execute(const Tensors& tensors, const CallParameters& parameters, std::span<std::byte> workspace) const {
    if (cuda::current_context() != modules_->context()) {
      fail_argument(
          "this attention was compiled in another CUDA context than the calling thread's: make that one current, or "
          "compile once for each context");
    }
    ArgumentBytes argument = call_.arguments(tensors, parameters, cuda::aligned(workspace).data());
    if (call_.is_mapped()) write_tensor_maps(call_.problem(), call_.cache_lines(), argument);
    for (std::size_t i = 0; i < loaded_.size(); ++i) {
      const KernelLaunch& launch = call_.launches()[i];
      cuda::KernelModule::launch(loaded_[i], {launch.blocks, 1, 1}, launch.threads, launch.shared_bytes,
                                 launch.parameter(argument), parameters.stream);
    }
  }

 private:
  void launch_once() {
    if (call_.launches_once().empty()) return;
    once_ = std::make_shared<OwnedMemory>(cuda::cuda_memory(), call_.bytes_once());
    call_.set_memory_once(once_->data());
    const ArgumentBytes argument = call_.arguments_once();
    for (const KernelLaunch& launch : call_.launches_once()) {
      cuda::KernelModule::launch(modules_->kernel(launch), {launch.blocks, 1, 1}, launch.threads, launch.shared_bytes,
                                 launch.parameter(argument), cuda::own_stream());
    }
    cuda::wait_for_own_stream();
  }

  std::shared_ptr<LoadedModules> modules_;
  KernelCall call_;
  std::vector<cuda::KernelModule::Kernel> loaded_;  ///< one for each launch
  std::shared_ptr<const OwnedMemory> once_;
};

template <class Plan, class Tensors>
class KernelsPlan final : public Plan {
 public:
  KernelsPlan(std::shared_ptr<LoadedModules> modules, KernelCall call)
      : kernels_(std::move(modules), std::move(call)) {}

  std::size_t workspace_bytes() const override { return kernels_.workspace_bytes(); }
  void execute(const Tensors& tensors, const CallParameters& parameters,
               std::span<std::byte> workspace) const override {
    kernels_.execute(tensors, parameters, workspace);
  }

 private:
  LoadedKernels kernels_;
};

}  // namespace

std::unique_ptr<ForwardPlan> forward_plan(KernelCall call, std::shared_ptr<LoadedModules> modules) {
  return std::make_unique<KernelsPlan<ForwardPlan, ForwardTensors>>(std::move(modules), std::move(call));
}

std::unique_ptr<BackwardPlan> backward_plan(KernelCall call, std::shared_ptr<LoadedModules> modules) {
  return std::make_unique<KernelsPlan<BackwardPlan, BackwardTensors>>(std::move(modules), std::move(call));
}

}  // namespace scoremod::backend::kernels
