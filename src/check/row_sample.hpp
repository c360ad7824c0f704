#pragma once

#include "check/check_case.hpp"

namespace scoremod::checking {

/// Counts, among some rows of a problem, those in which an output can show a fault.
struct RowSample {
  int rows = 0;
  int empty = 0;          ///< without a key
  int partly_kept = 0;    ///< with some keys, but not all
  int told_by_score = 0;  ///< whose weights are others with other scores: a hundredth of them is elsewhere
};

/// Samples `rows` rows at random, with the operands, lengths and sink of the case, at scores of the deviation that
/// random_inputs() gives them. The result is deterministic. It takes some tenths of a millisecond at hundreds of keys.
RowSample sample_rows(const CheckCase& one, int rows = 12);

}  // namespace scoremod::checking
