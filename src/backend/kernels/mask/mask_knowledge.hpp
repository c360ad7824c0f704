#pragma once

#include <cstdint>
#include <vector>

#include "backend/plan.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::kernels {

/// The program that a direction's kernels evaluate: the derivative has the forward's value and mask.
const Program& program_of(const compiler::CompiledProblem& problem, Direction direction);

/// Facts about a mask that kernels know before they have scores.
struct MaskKnowledge {
  enum class Kind : std::uint8_t {
    kBand,   ///< it is a band, or nothing is masked, or everything is: tiles are told by their indices
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
  /// The states are the same in every call, because the terms read no runtime arguments.
  bool same_in_every_call = false;
};
MaskKnowledge mask_knowledge(const compiler::CompiledProblem& problem, Direction direction);

}  // namespace scoremod::backend::kernels
