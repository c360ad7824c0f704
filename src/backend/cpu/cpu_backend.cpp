#include "backend/cpu/cpu_backend.hpp"

#include "backend/cpu/backward_plan.hpp"
#include "backend/cpu/forward_plan.hpp"

namespace scoremod::backend {
namespace {

using compiler::CompiledProblem;

/// Why a problem can't be run: nothing, so far. Every member is named: one that is added does not compile until it is
/// run or refused here.
std::vector<std::string> objections(const AttentionProblem& problem) {
  [[maybe_unused]] const auto& [batch, heads_q, heads_kv, seq_q, seq_kv, dim_qk, dim_v, dtype, q, k, v, o, scale,
                                program, operands, backward, stats, index_offsets, deterministic] = problem;
  return {};
}

class CpuBackend final : public Backend {
 public:
  const char* name() const override { return "cpu"; }
  bool backward_reads_lse() const override { return false; }
  Verdict support(const CompiledProblem& compiled) const override {
    std::vector<std::string> reasons = objections(compiled.problem);
    return {reasons.empty(), std::move(reasons), {}};
  }
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
