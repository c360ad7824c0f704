#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "backend/kernels/direction_kernels.hpp"
#include "backend/kernels/operand_source.hpp"

namespace scoremod::backend::kernels {

/// The gradients of some operands, beside a backward that some engine runs or with one: everything but a device, as
/// DirectionKernels has it.
class OperandKernels {
 public:
  /// `targets` are operand_targets() of the problem, and not empty. Gains::kBeside: dq, dk and dv too.
  OperandKernels(const compiler::CompiledProblem& problem, std::vector<OperandTarget> targets, const TileShape& shape,
                 Gains gains = Gains::kApart);

  OperandKernels(const OperandKernels&) = delete;  // launches name kernels in names_
  OperandKernels& operator=(const OperandKernels&) = delete;

  const AttentionProblem& problem() const { return backward_.problem(); }
  const TileShape& shape() const { return backward_.shape(); }
  const std::vector<KernelLaunch>& launches() const { return launches_; }
  /// As of DirectionKernels.
  const std::vector<KernelLaunch>& states_launches() const { return backward_.states_launches(); }
  std::size_t states_bytes() const { return backward_.states_bytes(); }
  void set_states(void* states) { backward_.set_states(states); }
  ArgumentBytes states_arguments() const { return backward_.states_arguments(); }
  /// The size of a workspace that is aligned to 16 bytes.
  std::size_t workspace_bytes() const { return workspace_bytes_; }

  ArgumentBytes arguments(const BackwardTensors& tensors, const CallParameters& parameters, std::byte* workspace) const;

 private:
  /// The names of the kernels that add up a target's sums.
  struct Names {
    std::string total, clear, diagonals;
  };

  void add_launches_beside(const TileShape& shape);
  void add_launches_apart(const AttentionProblem& problem, const TileShape& shape);
  void add_clears(const AttentionProblem& problem);
  void add_shared(std::size_t target, const TileShape& shape);
  void add_totals(const AttentionProblem& problem, const TileShape& shape);

  DirectionKernels backward_;
  std::vector<OperandTarget> targets_;
  std::vector<Names> names_;
  std::vector<std::size_t> sums_;  ///< where each target's begin in the workspace
  std::size_t workspace_bytes_ = 0;
  std::vector<KernelLaunch> launches_;
};

}  // namespace scoremod::backend::kernels
