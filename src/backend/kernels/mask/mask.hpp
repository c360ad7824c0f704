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

/// The queries and the keys of a tile of scores.
struct ScoreTile {
  int queries = 0, keys = 0;
};

/// The parts of all tiles of a head that kernels run, and that they evaluate the mask in (which are among them).
struct MaskWork {
  double run = 1, partial = 0;
  bool uneven = false;       ///< some rows of tiles run more than others
  bool few_longest = false;  ///< the first or the last row of tiles runs much more than most do
};

/// The part of all pairs of a query and a key that varlen sequences fill if they are as long as each other.
double filled_part(const AttentionProblem& problem);

/// The tiles that a direction's mask leaves, from the program: intervals are evaluated over boxes of tiles for some
/// rows of tiles, evenly spaced. If an operand decides, the kind of the mask says what is usual. It takes some 0.1 ms.
MaskWork mask_work(const compiler::CompiledProblem& problem, Direction direction, ScoreTile tile);

/// mask_over() of mask/block_mask.cuh, for a mask that keeps what all of `terms` keep. Terms are bools of the
/// program that read neither the score nor the upstream gradient. It tells by intervals whether a box of elements is
/// kept whole, or not at all; for a mask with many nodes it never does.
std::string mask_ranges_function(const AttentionProblem& problem, const Program& program,
                                 std::span<const NodeId> terms);

}  // namespace scoremod::backend::kernels
