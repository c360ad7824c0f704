#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/kernels/arguments.hpp"
#include "backend/kernels/attention_source.hpp"
#include "backend/kernels/mask_knowledge.hpp"

namespace scoremod::backend::kernels {

/// One kernel of a call. Its only parameter is the call's ArgumentBytes, with their maps where it is `mapped`.
struct KernelLaunch {
  const char* kernel = nullptr;
  std::int64_t blocks = 0;
  int threads = 0;
  std::size_t shared_bytes = 0;
  bool mapped = false;

  const std::byte* parameter(const ArgumentBytes& argument) const {
    return mapped ? argument.mapped() : argument.data();
  }
};

/// The parts of one direction of a problem that need no device: the text of its kernels, a call's launches in order,
/// and their argument. It is the forward or the backward of attention alone, without operand gradients.
class DirectionKernels {
 public:
  DirectionKernels(const compiler::CompiledProblem& problem, Direction direction, const TileShape& shape);

  /// Why no kernels can be made for this problem; empty when they can. Needs no device.
  static std::vector<UnsupportedReason> unsupported_reasons(const compiler::CompiledProblem& problem);

  const AttentionProblem& problem() const { return problem_; }
  const TileShape& shape() const { return shape_; }
  const std::vector<KernelLaunch>& launches() const { return launches_; }
  /// The size of a workspace that is aligned to 16 bytes.
  std::size_t workspace_bytes() const {
    if (shape_.persistent_blocks > 0) return taken_at() + sizeof(int);
    return query_sums_at() + query_sums_bytes_;
  }

  /// Launches that find tile states and the order of the rows of tiles once, if they are the same in every call. They
  /// are then not among launches(). Their output, of states_bytes(), goes to set_states(), and later arguments() point
  /// to it.
  const std::vector<KernelLaunch>& states_launches() const { return states_launches_; }
  std::size_t states_bytes() const { return states_bytes_; }
  void set_states(void* states) { states_ = static_cast<unsigned char*>(states); }
  ArgumentBytes states_arguments() const { return common_arguments({}, {}, nullptr); }

  ArgumentBytes arguments(const ForwardTensors& tensors, const CallParameters& parameters, std::byte* workspace) const;
  ArgumentBytes arguments(const BackwardTensors& tensors, const CallParameters& parameters, std::byte* workspace) const;

 private:
  std::size_t differences_at() const;  ///< in the workspace
  std::size_t taken_at() const;        ///< in the workspace: a persistent forward's counter of work tiles
  std::size_t query_sums_at() const;   ///< in the workspace: a backward's
  int heads_together() const;
  void add_launches(Direction direction);
  void add_state_launches();
  void add_hopper_launches(Direction direction);
  void add_fused_launches();
  void add_few_query_launches();
  ArgumentBytes common_arguments(const CallParameters& parameters, std::span<const void* const> operands,
                                 std::byte* workspace) const;

  AttentionProblem problem_;
  masks::MaskClass mask_class_;
  std::vector<int> constants_;  ///< of the program, that are arguments
  TileShape shape_;
  MaskKnowledge mask_;
  std::int64_t query_tiles_ = 0, key_tiles_ = 0, blocks_ = 0;  ///< blocks_: where they are persistent
  std::size_t rows_bytes_ = 0, states_bytes_ = 0, parts_bytes_ = 0, differences_bytes_ = 0, query_sums_bytes_ = 0;
  std::vector<KernelLaunch> launches_;
  std::vector<KernelLaunch> states_launches_;
  std::size_t order_at_ = 0;   ///< behind the states, where there is one
  std::size_t shares_at_ = 0;  ///< decode: split-KV arrival counters behind the partials
  unsigned char* states_ = nullptr;
};

}  // namespace scoremod::backend::kernels
