#pragma once

#include <memory>
#include <optional>

#include "backend/cudnn/direction_plan.hpp"
#include "backend/plan.hpp"

namespace scoremod::backend::cudnn {

/// A direction plan as the executor and verification call it.
class CudnnForwardPlan final : public ForwardPlan {
 public:
  explicit CudnnForwardPlan(std::shared_ptr<const DirectionPlan> plan) : plan_(std::move(plan)) {}

  std::size_t workspace_bytes() const override;
  void execute(const ForwardTensors& tensors, const CallParameters& parameters,
               std::span<std::byte> workspace) const override;

 private:
  std::shared_ptr<const DirectionPlan> plan_;
};

/// dq, dk and dv, and the gradient of one operand where cuDNN writes it beside them.
class CudnnBackwardPlan final : public BackwardPlan {
 public:
  CudnnBackwardPlan(std::shared_ptr<const DirectionPlan> plan, std::optional<std::uint32_t> operand)
      : plan_(std::move(plan)), operand_(operand) {}

  std::size_t workspace_bytes() const override;
  void execute(const BackwardTensors& tensors, const CallParameters& parameters,
               std::span<std::byte> workspace) const override;

 private:
  std::shared_ptr<const DirectionPlan> plan_;
  std::optional<std::uint32_t> operand_;
};

}  // namespace scoremod::backend::cudnn
