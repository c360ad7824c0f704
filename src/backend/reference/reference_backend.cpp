#include "backend/reference/reference_backend.hpp"

#include "backend/direct_candidate.hpp"
#include "backend/host_members.hpp"
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
    const auto store = [&](TensorRole role, const std::vector<double>& values, void* out) {
      if (out != nullptr) reference::store_dense(compiled_.problem, role, values, out, tensors.operands);
    };
    store(TensorRole::kO, result.o, tensors.o);
    store(TensorRole::kLse, result.lse, tensors.lse);
    store(TensorRole::kLse, result.max_logit, tensors.max_logit);
    if (tensors.amax_o != nullptr) *tensors.amax_o = static_cast<float>(result.amax_o.front());
  }

 private:
  const CompiledProblem compiled_;
};

class ReferenceBackward final : public BackwardPlan {
 public:
  explicit ReferenceBackward(const CompiledProblem& compiled) : compiled_(compiled) {}

  std::size_t workspace_bytes() const override { return 0; }

  /// Computes the forward anew instead of reading o and lse, whose rounding must not enter, but where deltas are given.
  void execute(const BackwardTensors& tensors, const CallParameters& parameters, std::span<std::byte>) const override {
    const AttentionProblem& problem = compiled_.problem;
    const reference::InputTensors inputs{tensors.q,        tensors.k, tensors.v,  tensors.d_o,
                                         tensors.operands, tensors.o, tensors.lse};
    const auto result = reference::backward<double>(compiled_, inputs, parameters);
    reference::store_dense(problem, TensorRole::kDQ, result.dq, tensors.dq, tensors.operands);
    reference::store_dense(problem, TensorRole::kDK, result.dk, tensors.dk, tensors.operands);
    reference::store_dense(problem, TensorRole::kDV, result.dv, tensors.dv, tensors.operands);
    const auto store_amax = [](const std::vector<double>& amax, float* out) {
      if (out != nullptr) *out = static_cast<float>(amax.front());
    };
    store_amax(result.amax_dq, tensors.amax_dq);
    store_amax(result.amax_dk, tensors.amax_dk);
    store_amax(result.amax_dv, tensors.amax_dv);
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

/// The interpreter's approximate cost; far above the tiled path for every size.
constexpr double kFlopsPerMillisecond = 5e3;

class ReferenceBackend final : public Backend {
 public:
  const char* name() const override { return "reference"; }
  bool backward_reads_lse() const override { return false; }
  std::vector<UnsupportedReason> objections(const CompiledProblem& compiled, const Task&,
                                            const Target*) const override {
    runs_every_member(compiled.problem);
    return {};
  }
  std::vector<Candidate> candidates(const CompiledProblem& problem, const Task& task, const Target&,
                                    std::vector<UnsupportedReason>&) const override {
    const auto forward = [](const CompiledProblem& compiled, const PlanOptions&) {
      return reference::make_forward_plan(compiled);
    };
    const auto backward = [](const CompiledProblem& compiled, const PlanOptions&) {
      return reference::make_backward_plan(compiled);
    };
    return {direct_candidate(problem, task, kFlopsPerMillisecond, {forward, backward})};
  }
};

}  // namespace

std::unique_ptr<ForwardPlan> reference::make_forward_plan(const CompiledProblem& problem) {
  return std::make_unique<ReferenceForward>(problem);
}

std::unique_ptr<BackwardPlan> reference::make_backward_plan(const CompiledProblem& problem) {
  return std::make_unique<ReferenceBackward>(problem);
}

const Backend& reference_backend() {
  static const ReferenceBackend kBackend;
  return kBackend;
}

}  // namespace scoremod::backend
