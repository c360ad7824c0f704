#include "planner/composed_backward.hpp"

#include <algorithm>
#include <utility>

#include "base/fail.hpp"

namespace scoremod::planner {
namespace {

using backend::BackwardPlan;

class ComposedBackward final : public BackwardPlan {
 public:
  ComposedBackward(std::shared_ptr<const BackwardPlan> attention, std::shared_ptr<const BackwardPlan> fused,
                   std::vector<std::uint32_t> fused_operands, std::shared_ptr<const BackwardPlan> gradients)
      : attention_(std::move(attention)),
        fused_(std::move(fused)),
        fused_operands_(std::move(fused_operands)),
        gradients_(std::move(gradients)) {}

  /// All run on one stream, one after the other.
  std::size_t workspace_bytes() const override {
    return std::max({attention_->workspace_bytes(), fused_ ? fused_->workspace_bytes() : 0,
                     gradients_ ? gradients_->workspace_bytes() : 0});
  }

  void execute(const backend::BackwardTensors& tensors, const backend::CallParameters& parameters,
               std::span<std::byte> workspace) const override {
    const bool wanted = std::ranges::any_of(tensors.d_operands, [](const void* data) { return data != nullptr; });
    if (wanted && writes_all(tensors.d_operands)) return fused_->execute(tensors, parameters, workspace);
    attention_->execute(tensors, parameters, workspace);
    if (wanted) gradients_->execute(tensors, parameters, workspace);
  }

 private:
  /// Whether the fused plan should run. It must write every wanted gradient, and it writes no others if a plan that
  /// runs anyway makes the rest for less. Without such a plan it makes all, and skips unwanted ones.
  bool writes_all(std::span<void* const> d_operands) const {
    if (!fused_) return false;
    if (!gradients_) return true;
    for (std::uint32_t i = 0; i < d_operands.size(); ++i) {
      const bool is_fused = std::ranges::find(fused_operands_, i) != fused_operands_.end();
      if (is_fused != (d_operands[i] != nullptr)) return false;
    }
    return true;
  }

  std::shared_ptr<const BackwardPlan> attention_;
  std::shared_ptr<const BackwardPlan> fused_;  ///< null where no plan writes some operands' gradients too
  std::vector<std::uint32_t> fused_operands_;
  std::shared_ptr<const BackwardPlan> gradients_;  ///< null when no call needs it
};

}  // namespace

std::shared_ptr<const BackwardPlan> compose_backward(const Prepared& prepared) {
  const auto& attention = prepared.backward->plan.backward;
  if (attention == nullptr || !prepared.fused_backward) {
    if (attention == nullptr || !prepared.operand_gradients) return attention;
    return std::make_shared<ComposedBackward>(attention, nullptr, std::vector<std::uint32_t>{},
                                              prepared.operand_gradients->plan.backward);
  }
  return std::make_shared<ComposedBackward>(
      attention, prepared.fused_backward->plan.backward, prepared.fused_backward->task.operand_gradients,
      prepared.operand_gradients ? prepared.operand_gradients->plan.backward : nullptr);
}

std::string names_of(const AttentionProblem& problem, const std::vector<std::uint32_t>& operands) {
  std::string names;
  for (const std::uint32_t operand : operands) {
    names += concat(names.empty() ? "'" : ", '", problem.program.operands()[operand].name, "'");
  }
  return names;
}

}  // namespace scoremod::planner
