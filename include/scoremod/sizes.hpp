#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "scoremod/export.hpp"
#include "scoremod/problem.hpp"

namespace scoremod {

/// A call's words on one operand of a problem with open sizes.
struct OperandSizes {
  std::string name;
  /// The extents of a table that the problem leaves open. An operand with axes has the problem's sizes along them.
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< in elements, one per dimension; empty means dense

  bool operator==(const OperandSizes&) const = default;
};

/// The sizes of one call of a problem that leaves some open (kOpenSize), and the strides of its tensors. A size of 0 is
/// as the problem says, unless takes_zeros; one that the problem fixes may be given, and is then the same.
struct Sizes {
  std::int64_t batch = 0;
  std::int64_t heads_q = 0;
  std::int64_t heads_kv = 0;
  std::int64_t seq_q = 0;
  std::int64_t seq_kv = 0;
  std::int64_t tokens_q = 0;  ///< of varlen tensors, and so is the next
  std::int64_t tokens_kv = 0;
  std::int64_t blocks = 0;               ///< of the pool of paged keys
  std::int64_t blocks_per_sequence = 0;  ///< the width of the page tables
  /// Absent: as the problem says, which is dense where it gives none.
  std::optional<Strides> q, k, v, o, d_o, dq, dk, dv;
  std::vector<OperandSizes> operands;  ///< only those whose shape or strides the problem leaves open
  /// Whether a size that the problem leaves open is 0 where it is 0 here. Otherwise it is missing, and refused.
  bool takes_zeros = false;

  bool operator==(const Sizes&) const = default;
};

/// Whether calls have to pass a size of the problem.
SCOREMOD_API bool has_open_sizes(const AttentionProblem& problem);

/// The problem of a call with these sizes; none stays open. Throws Error(kInvalidArgument) if a size is missing,
/// differs from the problem's, or makes a problem that Attention::compile() refuses.
SCOREMOD_API AttentionProblem problem_at(const AttentionProblem& problem, const Sizes& sizes);

}  // namespace scoremod
