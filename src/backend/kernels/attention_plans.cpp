#include "backend/kernels/attention_plans.hpp"

#include <cstdint>
#include <memory>
#include <utility>

#include "backend/cuda/context.hpp"
#include "backend/cuda/cuda_memory.hpp"
#include "backend/cuda/kernel_module.hpp"
#include "backend/cuda/own_stream.hpp"
#include "backend/cuda/retirement.hpp"
#include "backend/cuda/workspace_alignment.hpp"
#include "backend/kernels/direction_kernels.hpp"
#include "backend/kernels/operand_kernels.hpp"
#include "backend/kernels/tensor_maps.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::kernels {
namespace {

/// What a kernel may use of shared memory without asking.
constexpr std::size_t kFreeSharedBytes = std::size_t{48} * 1024;

/// Kernels in the device's memory: DirectionKernels or OperandKernels.
template <class Kernels>
class LoadedKernels {
 public:
  /// `arguments` are the kernels'.
  template <class... Arguments>
  explicit LoadedKernels(const std::vector<std::string>& modules, const Arguments&... arguments)
      : context_(cuda::current_context()), kernels_(arguments...) {
    for (const std::string& module : modules) modules_.push_back(std::make_unique<cuda::KernelModule>(module));
    for (const KernelLaunch& launch : kernels_.launches()) {
      const cuda::KernelModule::Kernel kernel = find(launch.kernel);
      if (launch.shared_bytes > kFreeSharedBytes) cuda::KernelModule::allow_shared_memory(kernel, launch.shared_bytes);
      loaded_.push_back(kernel);
    }
    find_states();
  }

  /// Calls on other streams may still be running. The states are freed after the modules, whose unloading waits for
  /// them.
  ~LoadedKernels() {
    modules_.clear();
    if (states_ != nullptr) cuda::retire([states = std::move(states_)]() mutable { states.reset(); });
  }
  LoadedKernels(const LoadedKernels&) = delete;
  LoadedKernels& operator=(const LoadedKernels&) = delete;

  std::size_t workspace_bytes() const { return cuda::with_room_to_align(kernels_.workspace_bytes()); }

  template <class Tensors>
  void execute(const Tensors& tensors, const CallParameters& parameters, std::span<std::byte> workspace) const {
    if (cuda::current_context() != context_) {
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
  /// In the first module that has it.
  cuda::KernelModule::Kernel find(const char* name) const {
    for (const auto& module : modules_) {
      if (const cuda::KernelModule::Kernel kernel = module->find(name)) return kernel;
    }
    fail_bug("no module has the kernel ", name);
  }

  /// Once, where they are the same in every call.
  void find_states() {
    if (kernels_.states_launches().empty()) return;
    states_ = std::make_shared<OwnedMemory>(cuda::cuda_memory(), kernels_.states_bytes());
    kernels_.set_states(states_->data());
    const ArgumentBytes argument = kernels_.states_arguments();
    for (const KernelLaunch& launch : kernels_.states_launches()) {
      cuda::KernelModule::launch(find(launch.kernel), {launch.blocks, 1, 1}, launch.threads, launch.shared_bytes,
                                 launch.parameter(argument), cuda::own_stream());
    }
    cuda::wait_for_own_stream();
  }

  std::uint64_t context_ = 0;  ///< that the kernels were loaded in
  Kernels kernels_;
  std::vector<std::unique_ptr<cuda::KernelModule>> modules_;
  std::vector<cuda::KernelModule::Kernel> loaded_;  ///< one for each launch
  std::shared_ptr<const OwnedMemory> states_;
};

template <class Plan, class Tensors, class Kernels>
class KernelsPlan final : public Plan {
 public:
  template <class... Arguments>
  explicit KernelsPlan(const std::vector<std::string>& modules, const Arguments&... arguments)
      : kernels_(modules, arguments...) {}

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
                                          const std::vector<std::string>& modules) {
  return std::make_unique<Forward>(modules, problem, Direction::kForward, shape);
}

std::unique_ptr<BackwardPlan> backward_plan(const compiler::CompiledProblem& problem, const TileShape& shape,
                                            const std::vector<std::string>& modules,
                                            const std::vector<OperandTarget>& targets) {
  if (!targets.empty()) return std::make_unique<OperandGradients>(modules, problem, targets, shape, Gains::kBeside);
  return std::make_unique<Backward>(modules, problem, Direction::kBackward, shape);
}

std::unique_ptr<BackwardPlan> operand_plan(const compiler::CompiledProblem& problem,
                                           const std::vector<OperandTarget>& targets, const TileShape& shape,
                                           const std::vector<std::string>& modules) {
  return std::make_unique<OperandGradients>(modules, problem, targets, shape);
}

}  // namespace scoremod::backend::kernels
