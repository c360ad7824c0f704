#include "backend/cpu/cpu_backend.hpp"

#include "backend/cpu/forward_plan.hpp"
#include "base/fail.hpp"

namespace scoremod::backend {
namespace {

using compiler::CompiledProblem;

class CpuBackend final : public Backend {
 public:
  const char* name() const override { return "cpu"; }
  Verdict support(const CompiledProblem& problem) const override {
    if (!problem.problem.backward) return {};
    return {false, {"the tiled path has no backward yet; leave out `backward`, or use the reference backend"}};
  }
  std::unique_ptr<ForwardPlan> plan_forward(const CompiledProblem& problem, const PlanOptions& options) const override {
    return cpu::make_forward_plan(problem, options);
  }
  std::unique_ptr<BackwardPlan> plan_backward(const CompiledProblem&, const PlanOptions&) const override {
    fail_bug("the cpu backend has no backward yet");
  }
};

}  // namespace

const Backend& cpu_backend() {
  static const CpuBackend backend;
  return backend;
}

}  // namespace scoremod::backend
