#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/backend.hpp"
#include "backend/cuda/compute/compute_kernel.hpp"
#include "backend/cudnn/graph/attention_graph.hpp"
#include "backend/cudnn/graph/engine.hpp"
#include "backend/cudnn/lowering/lower.hpp"
#include "backend/cudnn/sequences/sequence_placer.hpp"

namespace scoremod::backend::cudnn {

/// One direction of one problem, ready to run in the CUDA context that was current when it was made. Immutable.
class DirectionPlan {
 public:
  DirectionPlan(const compiler::CompiledProblem& problem, Direction direction, LoweredModifier modifier,
                std::shared_ptr<const EnginePlan> engine);

  std::size_t workspace_bytes() const { return workspace_bytes_; }
  const LoweredModifier& modifier() const { return modifier_; }
  /// The bytes of the workspace for operands that are computed before cuDNN runs.
  std::size_t computed_bytes() const { return computed_bytes_; }

  /// Enqueues the kernels that place sequences and compute operands, and cuDNN's plan. Without a stats pointer, the LSE
  /// goes into the workspace, which is aligned to 256 bytes. Throws Error(kInvalidArgument) in another context than the
  /// one that the plan was made in.
  void execute(const CallPointers& call, const CallParameters& parameters, std::span<std::byte> workspace) const;

 private:
  /// Fills what is 0 in each call: a sink that is not learned.
  void clear(const CallParameters& parameters, std::span<std::byte> workspace) const;
  /// The source of one of the backend's pointers.
  struct Source {
    enum class Kind : std::uint8_t { kAttention, kOperand, kWorkspace, kOffset, kScale };
    Kind kind = Kind::kAttention;
    std::size_t place = 0;  ///< the Uid, the operand's number, the offset into the workspace, or the axis
  };

  static constexpr std::size_t kMaxPointers = 64;

  void compute_operands(const CallPointers& call, const CallParameters& parameters,
                        std::span<std::byte> workspace) const;
  Source source_of(std::int64_t uid) const;
  Source sink_source(const AttentionProblem& problem);
  std::size_t page_mask_place() const;
  std::size_t place_in_workspace(std::size_t bytes);

  std::uint64_t context_ = 0;  ///< that the plan and its kernels were loaded in
  LoweredModifier modifier_;
  std::shared_ptr<const EnginePlan> engine_;
  std::shared_ptr<const cuda::ComputeKernel> kernel_;  ///< null when nothing is computed
  std::size_t workspace_bytes_ = 0;
  std::size_t computed_bytes_ = 0;
  std::vector<std::size_t> computed_places_;
  std::size_t stats_place_ = 0;
  Source sink_;                             ///< of a forward with a sink
  std::optional<SequencePlacer> placer_;    ///< where offsets or page tables place sequences
  std::size_t placer_place_ = 0;            ///< of its results
  std::optional<std::uint32_t> page_mask_;  ///< the operand that it writes, if k and v are paged
  std::size_t cleared_bytes_ = 0;           ///< at the sink's place
  std::vector<Source> sources_;             ///< one for each of the plan's uids
};

}  // namespace scoremod::backend::cudnn
