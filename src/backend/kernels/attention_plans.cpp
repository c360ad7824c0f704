#include "backend/kernels/attention_plans.hpp"

#include <cstdint>
#include <memory>
#include <utility>

#include "backend/cuda/context.hpp"
#include "backend/cuda/cuda_memory.hpp"
#include "backend/cuda/kernel_module.hpp"
#include "backend/cuda/own_stream.hpp"
#include "backend/cuda/workspace_alignment.hpp"
#include "backend/kernels/direction_kernels.hpp"
#include "backend/kernels/operand_kernels.hpp"
#include "backend/kernels/tensor_maps.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::kernels {
namespace {

/// Kernels of one problem in the device's memory: DirectionKernels or OperandKernels.
template <class Kernels>
class LoadedKernels {
 public:
  /// `arguments` are the kernels'.
  template <class... Arguments>
  explicit LoadedKernels(std::shared_ptr<LoadedModules> modules, const Arguments&... arguments)
      : modules_(std::move(modules)), kernels_(arguments...) {
    for (const KernelLaunch& launch : kernels_.launches()) loaded_.push_back(modules_->kernel(launch));
    find_states();
  }

  /// Calls on other streams may still be running.
  ~LoadedKernels() {
    if (states_ != nullptr) modules_->keep_until_unloaded(std::move(states_));
  }
  LoadedKernels(const LoadedKernels&) = delete;
  LoadedKernels& operator=(const LoadedKernels&) = delete;

  std::size_t workspace_bytes() const { return cuda::with_room_to_align(kernels_.workspace_bytes()); }

  template <class Tensors>
  void execute(const Tensors& tensors, const CallParameters& parameters, std::span<std::byte> workspace) const {
    if (cuda::current_context() != modules_->context()) {
      fail_argument(
          "this attention was compiled in another CUDA context than the calling thread's: make that one current, or "
          "compile once for each context");
    }
    ArgumentBytes argument = kernels_.arguments(tensors, parameters, cuda::aligned(workspace).data());
    if (is_hopper(kernels_.shape().family)) write_tensor_maps(kernels_.problem(), kernels_.shape(), argument);
    for (std::size_t i = 0; i < loaded_.size(); ++i) {
      const KernelLaunch& launch = kernels_.launches()[i];
      cuda::KernelModule::launch(loaded_[i], {launch.blocks, 1, 1}, launch.threads, launch.shared_bytes,
                                 launch.parameter(argument), parameters.stream);
    }
  }

 private:
  /// Once, where they are the same in every call.
  void find_states() {
    if (kernels_.states_launches().empty()) return;
    states_ = std::make_shared<OwnedMemory>(cuda::cuda_memory(), kernels_.states_bytes());
    kernels_.set_states(states_->data());
    const ArgumentBytes argument = kernels_.states_arguments();
    for (const KernelLaunch& launch : kernels_.states_launches()) {
      cuda::KernelModule::launch(modules_->kernel(launch), {launch.blocks, 1, 1}, launch.threads, launch.shared_bytes,
                                 launch.parameter(argument), cuda::own_stream());
    }
    cuda::wait_for_own_stream();
  }

  std::shared_ptr<LoadedModules> modules_;
  Kernels kernels_;
  std::vector<cuda::KernelModule::Kernel> loaded_;  ///< one for each launch
  std::shared_ptr<const OwnedMemory> states_;
};

template <class Plan, class Tensors, class Kernels>
class KernelsPlan final : public Plan {
 public:
  template <class... Arguments>
  explicit KernelsPlan(std::shared_ptr<LoadedModules> modules, const Arguments&... arguments)
      : kernels_(std::move(modules), arguments...) {}

  std::size_t workspace_bytes() const override { return kernels_.workspace_bytes(); }
  void execute(const Tensors& tensors, const CallParameters& parameters,
               std::span<std::byte> workspace) const override {
    kernels_.execute(tensors, parameters, workspace);
  }

 private:
  LoadedKernels<Kernels> kernels_;
};

using Forward = KernelsPlan<ForwardPlan, ForwardTensors, DirectionKernels>;
using Backward = KernelsPlan<BackwardPlan, BackwardTensors, DirectionKernels>;
using OperandGradients = KernelsPlan<BackwardPlan, BackwardTensors, OperandKernels>;

}  // namespace

std::unique_ptr<ForwardPlan> forward_plan(const compiler::CompiledProblem& problem, const TileShape& shape,
                                          std::shared_ptr<LoadedModules> modules) {
  return std::make_unique<Forward>(std::move(modules), problem, Direction::kForward, shape);
}

std::unique_ptr<BackwardPlan> backward_plan(const compiler::CompiledProblem& problem, const TileShape& shape,
                                            std::shared_ptr<LoadedModules> modules,
                                            const std::vector<OperandTarget>& targets) {
  if (!targets.empty())
    return std::make_unique<OperandGradients>(std::move(modules), problem, targets, shape, Gains::kBeside);
  return std::make_unique<Backward>(std::move(modules), problem, Direction::kBackward, shape);
}

std::unique_ptr<BackwardPlan> operand_plan(const compiler::CompiledProblem& problem,
                                           const std::vector<OperandTarget>& targets, const TileShape& shape,
                                           std::shared_ptr<LoadedModules> modules) {
  return std::make_unique<OperandGradients>(std::move(modules), problem, targets, shape);
}

}  // namespace scoremod::backend::kernels
