#include "support/emulated_plans.hpp"

#include "support/test_seed.hpp"

namespace scoremod::test {
namespace {

using backend::Direction;

template <class Plan, class Tensors, Direction kDirection>
class EmulatedPlan final : public Plan {
 public:
  EmulatedPlan(const compiler::CompiledProblem& compiled, const backend::kernels::AnyShape& shape)
      : kernels_(compiled, kDirection, shape) {}
  EmulatedPlan(const compiler::CompiledProblem& compiled, const backend::kernels::Variant& variant,
               const EmulatedLaunches::Fault& fault)
      : kernels_({compiled, kDirection, {}}, variant, fault) {}

  std::size_t workspace_bytes() const override { return kernels_.kernels().workspace_bytes(); }
  void execute(const Tensors& tensors, const backend::CallParameters& parameters,
               std::span<std::byte> workspace) const override {
    kernels_.run(kernels_.kernels().arguments(tensors, parameters, workspace.data()),
                 static_cast<unsigned>(test_seed()));
  }

 private:
  EmulatedKernels kernels_;
};

}  // namespace

std::unique_ptr<backend::ForwardPlan> emulated_forward_plan(const compiler::CompiledProblem& compiled,
                                                            const backend::kernels::AnyShape& shape) {
  return std::make_unique<EmulatedPlan<backend::ForwardPlan, backend::ForwardTensors, Direction::kForward>>(compiled,
                                                                                                            shape);
}

std::unique_ptr<backend::ForwardPlan> emulated_forward_plan(const compiler::CompiledProblem& compiled,
                                                            const backend::kernels::Variant& variant,
                                                            const EmulatedLaunches::Fault& fault) {
  return std::make_unique<EmulatedPlan<backend::ForwardPlan, backend::ForwardTensors, Direction::kForward>>(
      compiled, variant, fault);
}

std::unique_ptr<backend::BackwardPlan> emulated_backward_plan(const compiler::CompiledProblem& compiled,
                                                              const backend::kernels::AnyShape& shape) {
  return std::make_unique<EmulatedPlan<backend::BackwardPlan, backend::BackwardTensors, Direction::kBackward>>(compiled,
                                                                                                               shape);
}

}  // namespace scoremod::test
