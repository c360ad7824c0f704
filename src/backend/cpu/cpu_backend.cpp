#include "backend/cpu/cpu_backend.hpp"

#include "backend/cpu/backward_plan.hpp"
#include "backend/cpu/forward_plan.hpp"
#include "backend/direct_recipe.hpp"

namespace scoremod::backend {
namespace {

using compiler::CompiledProblem;

/// From the rate of the committed benchmark (bench/results/cpu.json), for each core.
Prediction predicted_time(const CompiledProblem& problem, Direction direction, const Target& target) {
  constexpr double kFlopsPerMillisecond = 50e6;
  const AttentionProblem& p = problem.problem;
  const double pairs = static_cast<double>(p.batch) * static_cast<double>(p.heads_q) * static_cast<double>(p.seq_q) *
                       static_cast<double>(p.seq_kv);
  const double products = direction == Direction::kForward ? 2 : 5;
  return {pairs * products * static_cast<double>(p.dim_qk + p.dim_v) /
              (kFlopsPerMillisecond * static_cast<double>(target.device.multiprocessors)),
          "assumed rate"};
}

class CpuBackend final : public Backend {
 public:
  const char* name() const override { return "cpu"; }
  bool backward_reads_lse() const override { return false; }
  std::vector<UnsupportedReason> objections(const CompiledProblem& compiled, const Task&,
                                            const Target*) const override {
    // Every member is named: one that is added does not compile until it is run or refused here.
    [[maybe_unused]] const auto& [batch, heads_q, heads_kv, seq_q, seq_kv, dim_qk, dim_v, tokens_q, tokens_kv, paged,
                                  dtype, dtype_o, q, k, v, o, d_o, dq, dk, dv, scale, lengths, sink, dropout,
                                  dropout_keys, given_deltas, program, operands, backward, stats, max_logit,
                                  index_offsets, deterministic] = compiled.problem;
    return {};
  }
  std::vector<Candidate> candidates(const CompiledProblem& problem, const Task& task, const Target& target,
                                    std::vector<UnsupportedReason>&) const override {
    Candidate candidate;
    candidate.task = task;
    candidate.any_operand_gradients = true;
    candidate.predicted = predicted_time(problem, task.direction, target);
    const auto make = [problem, direction = task.direction](const PlanOptions& options) {
      ExecutablePlan plan;
      if (direction == Direction::kForward) {
        plan.forward = cpu::make_forward_plan(problem, options);
      } else {
        plan.backward = cpu::make_backward_plan(problem, options);
      }
      return plan;
    };
    candidate.recipe = std::make_shared<DirectRecipe>(make);
    return {std::move(candidate)};
  }
};

}  // namespace

const Backend& cpu_backend() {
  static const CpuBackend backend;
  return backend;
}

}  // namespace scoremod::backend
