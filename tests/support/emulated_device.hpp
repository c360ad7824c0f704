#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/kernels/backend/kernels_backend.hpp"
#include "backend/kernels/family.hpp"
#include "backend/kernels/operand_gradients/operand_gradients.hpp"
#include "support/host_library.hpp"
#include "support/tiled_call.hpp"

namespace scoremod::test {

/// Takes the place of `device shared` in shared/elements.cuh on a host.
std::string_view emulated_primitives();
std::string_view emulated_entry();
/// All kernels of a source, in terms of the emulated primitives.
std::string emulated_text(const backend::kernels::KernelSource& source);

/// Launches of kernels of a text on the host, thread by thread.
class EmulatedLaunches {
 public:
  using Fault = std::pair<std::string, std::string>;

  /// `text` is an emulated_text().
  EmulatedLaunches(std::string text, const std::vector<backend::kernels::KernelLaunch>& launches, const Fault& fault,
                   const Fault& another_fault = {});

  void run(backend::kernels::ArgumentBytes argument, unsigned seed) const;
  /// A plan's one-time setup: gives the kernels their block mask, if it is the same in every call.
  void find_states(backend::kernels::KernelCall& kernels) {
    if (kernels.launches_once().empty()) return;
    states_.resize(kernels.bytes_once());
    kernels.set_memory_once(states_.data());
    for (const backend::kernels::KernelLaunch& launch : kernels.launches_once())
      run_one(launch, kernels.arguments_once(), 1);
  }

 private:
  void run_one(const backend::kernels::KernelLaunch& launch, backend::kernels::ArgumentBytes argument,
               unsigned seed) const;

  const std::vector<backend::kernels::KernelLaunch>& launches_;
  HostLibrary library_;
  std::vector<unsigned char> states_;
};

/// One direction's attention kernels on the host, thread by thread. It checks their results, and that they synchronize,
/// wait and stay within their memory as on a device. Shared memory that was not written is NaN.
class EmulatedKernels {
 public:
  /// `fault`, if it is given, is a piece of the kernels' text and its replacement.
  EmulatedKernels(const compiler::CompiledProblem& problem, backend::Direction direction,
                  const backend::kernels::AnyShape& shape, const EmulatedLaunches::Fault& fault = {},
                  const EmulatedLaunches::Fault& another_fault = {});
  /// The kernels of any family's variant.
  EmulatedKernels(const backend::kernels::Work& work, const backend::kernels::Variant& variant,
                  const EmulatedLaunches::Fault& fault = {});

  const backend::kernels::KernelCall& kernels() const { return kernels_; }
  /// Runs all launches of a call; every tensor is the host's. `seed` decides in which order warps run.
  void run(backend::kernels::ArgumentBytes argument, unsigned seed) const;

 private:
  backend::kernels::KernelCall kernels_;
  EmulatedLaunches launches_;
};

/// The kernels of operand gradients.
class EmulatedOperandKernels {
 public:
  EmulatedOperandKernels(const compiler::CompiledProblem& problem,
                         const std::vector<backend::kernels::OperandTarget>& targets,
                         const backend::kernels::AnyShape& shape, const std::pair<std::string, std::string>& fault = {},
                         backend::kernels::Gains gains = backend::kernels::Gains::kApart);

  const backend::kernels::KernelCall& kernels() const { return kernels_; }
  void run(backend::kernels::ArgumentBytes argument, unsigned seed) const;

 private:
  backend::kernels::KernelCall kernels_;
  EmulatedLaunches launches_;
};

}  // namespace scoremod::test
