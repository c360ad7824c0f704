#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "scoremod/problem.hpp"

#include "backend/plan.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::kernels {

/// The program that a direction's kernels evaluate: the derivative has the forward's value and mask.
const Program& program_of(const compiler::CompiledProblem& problem, Direction direction);

/// Facts about a mask that kernels know before they have scores.
struct MaskKnowledge {
  enum class Kind : std::uint8_t {
    kBand,   ///< it is a band, perhaps beside the ends of varlen sequences, or nothing is masked, or everything is:
             ///< tiles are told by their indices and offsets
    kScore,  ///< it reads the score: no tile is known to be full
    kList,   ///< a kernel finds the state of every tile before the attention runs
  };
  Kind kind = Kind::kBand;
  /// The nodes that the kernel of the block mask evaluates, all of which are true for a kept element. For kList they
  /// are the mask, for kScore its score-free parts. Without any there are no states.
  std::vector<NodeId> terms;
  bool has_states() const { return !terms.empty(); }
  /// The axes whose indices the states differ along.
  bool varies_with_batch = false, varies_with_head = false, varies_with_query = false;
  /// A query keeps all keys that an earlier one of its head keeps, as below a diagonal. Some kernels look at the first
  /// and the last of a tile's queries alone then.
  bool grows_with_query = false;
  /// That, and a query keeps all keys of its batch and head before one that it keeps, wherever they lie. These kernels
  /// look at the first and the last of a tile's keys alone then.
  bool keeps_prefix = false;
  /// The states are the same in every call, because the terms read no runtime arguments.
  bool same_in_every_call = false;
};
MaskKnowledge mask_knowledge(const compiler::CompiledProblem& problem, Direction direction);

/// mask_over() of mask/block_mask.cuh, for a mask that keeps what all of `terms` keep. Terms are bools of the
/// program that read neither the score nor the upstream gradient. It tells by intervals whether a box of elements is
/// kept whole, or not at all; for a mask with many nodes it never does.
std::string mask_ranges_function(const AttentionProblem& problem, const Program& program,
                                 std::span<const NodeId> terms);

}  // namespace scoremod::backend::kernels
