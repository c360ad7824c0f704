#include "backend/cuda/operand_gradients/operand_gradients_backend.hpp"

#include <algorithm>
#include <utility>

#include "backend/cuda/device/cuda_memory.hpp"
#include "backend/cuda/device/workspace_alignment.hpp"
#include "backend/cuda/operand_gradients/operand_gradients.hpp"
#include "backend/cuda/operand_gradients/operand_gradients_time.hpp"
#include "backend/direct_recipe.hpp"
#include "backend/unsupported.hpp"
#include "base/canonical_bytes.hpp"
#include "base/fail.hpp"
#include "problem/implied_operands.hpp"

namespace scoremod::backend {
namespace {

using compiler::CompiledProblem;

/// To be raised when the pass does something else with the same kernels, or a trial says something else of it.
constexpr int kRevision = 1;

Bytes structural_key(const CompiledProblem& problem, std::span<const std::uint32_t> operands, int compute_capability) {
  CanonicalWriter structure;
  structure.text("operand gradients").integer(kRevision).integer(compute_capability);
  structure.bytes(cuda::OperandGradients::structure(problem, operands));
  return structure.written();
}

class OperandGradientsPlan final : public BackwardPlan {
 public:
  explicit OperandGradientsPlan(std::unique_ptr<const cuda::OperandGradients> pass) : pass_(std::move(pass)) {}

  std::size_t workspace_bytes() const override { return cuda::with_room_to_align(pass_->workspace_bytes()); }

  void execute(const BackwardTensors& tensors, const CallParameters& parameters,
               std::span<std::byte> workspace) const override {
    pass_->execute(tensors, parameters, cuda::aligned(workspace));
  }

 private:
  std::unique_ptr<const cuda::OperandGradients> pass_;
};

class OperandGradientsBackend final : public Backend {
 public:
  const char* name() const override { return "operand_gradients"; }
  const MemorySpace& memory() const override { return cuda::cuda_memory(); }
  /// The program's functions are those of the attention kernels; cuBLAS's products of float32 are float32's.
  double function_error() const override { return 0x1p-20; }
  bool is_companion() const override { return true; }

  std::vector<UnsupportedReason> objections(const CompiledProblem& problem, const Task& task,
                                            const Target*) const override {
    std::vector<UnsupportedReason> reasons = cuda::OperandGradients::unsupported_reasons(problem);
    const auto sink = problem::sink_operand(problem.problem);
    if (sink && std::ranges::find(task.operand_gradients, *sink) != task.operand_gradients.end())
      reasons.push_back(unsupported(Rule::kSink, "expected no gradient of a learned sink, found one among the task's"));
    return reasons;
  }

  std::vector<Candidate> candidates(const CompiledProblem& problem, const Task& task, const Target& target,
                                    std::vector<UnsupportedReason>&) const override {
    Candidate candidate;
    candidate.task = task;
    candidate.structural_key = [problem, operands = task.operand_gradients,
                                compute_capability = target.device.compute_capability] {
      return structural_key(problem, operands, compute_capability);
    };
    candidate.label = cuda::describe(problem, task.operand_gradients);
    candidate.notes = {candidate.label};
    candidate.predicted = {cuda::operand_gradients_time(problem, task.operand_gradients, target.device.rates),
                           "scaled from measured sums"};
    candidate.workspace_bytes = cuda::OperandGradients::cost(problem, task.operand_gradients).workspace_bytes;
    candidate.recipe = std::make_shared<DirectRecipe>(
        [problem, operands = task.operand_gradients, note = candidate.label](const PlanOptions&) {
          ExecutablePlan plan;
          plan.backward = std::make_shared<OperandGradientsPlan>(cuda::OperandGradients::build(problem, operands));
          plan.note = note;
          return plan;
        });
    return {std::move(candidate)};
  }
};

}  // namespace

const Backend& operand_gradients_backend() {
  static const OperandGradientsBackend backend;
  return backend;
}

}  // namespace scoremod::backend
