#include "backend/cpu/cpu_backend.hpp"

#include "backend/cpu/backward_plan.hpp"
#include "backend/cpu/forward_plan.hpp"

namespace scoremod::backend {
namespace {

using compiler::CompiledProblem;

class CpuBackend final : public Backend {
 public:
  const char* name() const override { return "cpu"; }
  bool backward_reads_lse() const override { return false; }
  Verdict support(const CompiledProblem&) const override { return {}; }
  std::unique_ptr<ForwardPlan> plan_forward(const CompiledProblem& problem, const PlanOptions& options) const override {
    return cpu::make_forward_plan(problem, options);
  }
  std::unique_ptr<BackwardPlan> plan_backward(const CompiledProblem& problem,
                                              const PlanOptions& options) const override {
    return cpu::make_backward_plan(problem, options);
  }
};

}  // namespace

const Backend& cpu_backend() {
  static const CpuBackend backend;
  return backend;
}

}  // namespace scoremod::backend
