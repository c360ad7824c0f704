#pragma once

#include <memory>

#include "backend/backend.hpp"
#include "backend/cuda/operand_gradients.hpp"
#include "backend/cudnn/direction_plan.hpp"
#include "backend/cudnn/gradient_ways.hpp"

namespace scoremod::backend::cudnn {

/// A direction plan as the executor and trials call it.
class CudnnForwardPlan final : public ForwardPlan {
 public:
  explicit CudnnForwardPlan(std::shared_ptr<const DirectionPlan> plan) : plan_(std::move(plan)) {}

  std::size_t workspace_bytes() const override;
  void execute(const ForwardTensors& tensors, const CallParameters& parameters,
               std::span<std::byte> workspace) const override;

 private:
  std::shared_ptr<const DirectionPlan> plan_;
};

/// A backward with what makes the gradients of its operands.
class CudnnBackwardPlan final : public BackwardPlan {
 public:
  /// `pass` is null when no call needs it.
  CudnnBackwardPlan(std::shared_ptr<const DirectionPlan> plan, GradientWays ways,
                    std::unique_ptr<const cuda::OperandGradients> pass)
      : plan_(std::move(plan)), ways_(std::move(ways)), pass_(std::move(pass)) {}

  std::size_t workspace_bytes() const override;
  void execute(const BackwardTensors& tensors, const CallParameters& parameters,
               std::span<std::byte> workspace) const override;

 private:
  std::shared_ptr<const DirectionPlan> plan_;
  GradientWays ways_;
  std::unique_ptr<const cuda::OperandGradients> pass_;
};

}  // namespace scoremod::backend::cudnn
