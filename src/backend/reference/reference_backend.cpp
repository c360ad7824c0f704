#include "backend/reference/reference_backend.hpp"

#include "backend/reference/dense_tensor.hpp"
#include "backend/reference/naive_attention.hpp"

namespace scoremod::backend {
namespace {

using compiler::CompiledProblem;
using problem::TensorRole;

class ReferenceForward final : public ForwardPlan {
 public:
  explicit ReferenceForward(const CompiledProblem& compiled) : compiled_(compiled) {}

  std::size_t workspace_bytes() const override { return 0; }

  void execute(const ForwardTensors& tensors, const CallParameters& parameters, std::span<std::byte>) const override {
    const reference::InputTensors inputs{tensors.q, tensors.k, tensors.v, nullptr, tensors.operands};
    const auto result = reference::forward<double>(compiled_, inputs, parameters);
    reference::store_dense(compiled_.problem, TensorRole::kO, result.o, tensors.o);
    if (tensors.lse == nullptr) return;
    for (std::size_t i = 0; i < result.lse.size(); ++i) tensors.lse[i] = static_cast<float>(result.lse[i]);
  }

 private:
  const CompiledProblem compiled_;
};

class ReferenceBackward final : public BackwardPlan {
 public:
  explicit ReferenceBackward(const CompiledProblem& compiled) : compiled_(compiled) {}

  std::size_t workspace_bytes() const override { return 0; }

  /// Computes the forward anew instead of reading o and lse, whose rounding must not enter.
  void execute(const BackwardTensors& tensors, const CallParameters& parameters, std::span<std::byte>) const override {
    const AttentionProblem& problem = compiled_.problem;
    const reference::InputTensors inputs{tensors.q, tensors.k, tensors.v, tensors.d_o, tensors.operands};
    const auto result = reference::backward<double>(compiled_, inputs, parameters);
    reference::store_dense(problem, TensorRole::kQ, result.dq, tensors.dq);
    reference::store_dense(problem, TensorRole::kK, result.dk, tensors.dk);
    reference::store_dense(problem, TensorRole::kV, result.dv, tensors.dv);
    const auto operands = reference::view_operands(problem, tensors.operands);
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (tensors.d_operands[i] == nullptr) continue;
      for (std::int64_t entry = 0; entry < operands[i].size(); ++entry) {
        const double gradient = result.d_operands[i][static_cast<std::size_t>(entry)];
        store_element(tensors.d_operands[i], operands[i].dtype, operands[i].offset(entry), gradient);
      }
    }
  }

 private:
  const CompiledProblem compiled_;
};

/// Why a problem can't be run: nothing, so far. Every member is named: one that is added does not compile until it is
/// run or refused here.
std::vector<std::string> objections(const AttentionProblem& problem) {
  [[maybe_unused]] const auto& [batch, heads_q, heads_kv, seq_q, seq_kv, dim_qk, dim_v, dtype, q, k, v, o, scale,
                                program, operands, backward, stats, index_offsets, deterministic] = problem;
  return {};
}

class ReferenceBackend final : public Backend {
 public:
  const char* name() const override { return "reference"; }
  bool backward_reads_lse() const override { return false; }
  Verdict support(const CompiledProblem& compiled) const override {
    std::vector<std::string> reasons = objections(compiled.problem);
    return {reasons.empty(), std::move(reasons), {}};
  }
  std::unique_ptr<ForwardPlan> plan_forward(const CompiledProblem& problem, const PlanOptions&) const override {
    return std::make_unique<ReferenceForward>(problem);
  }
  std::unique_ptr<BackwardPlan> plan_backward(const CompiledProblem& problem, const PlanOptions&) const override {
    return std::make_unique<ReferenceBackward>(problem);
  }
};

}  // namespace

const Backend& reference_backend() {
  static const ReferenceBackend kBackend;
  return kBackend;
}

}  // namespace scoremod::backend
