#pragma once

#include <cstdint>

namespace scoremod::backend::kernels {

/// How the gradient of one operand is summed by tiles of scores.
enum class OperandSum : std::uint8_t {
  kTotal,       ///< varies along neither queries nor keys
  kQueries,     ///< along queries
  kKeys,        ///< along keys
  kDifference,  ///< a table whose indices follow from b, h and kv_idx - q_idx: along diagonals
  kTable,       ///< a table at any indices: each contribution goes to an exact sum of its entry
  kShared,      ///< along queries and keys, and shared by batches or heads, which are gone through one after the other
  kElement,     ///< along both, and is written once: along batches and heads, too
  kSink,        ///< a learned sink: made of rows' LSEs and deltas alone
  kNothing,     ///< nothing contributes: zeros
};
struct OperandTarget {
  std::uint32_t operand = 0;
  OperandSum sum = OperandSum::kTotal;
};

/// The place where a text's targets are summed: the kernels of dq, dk and dv, or kernels that do nothing else.
enum class Gains : std::uint8_t { kBeside, kApart };

}  // namespace scoremod::backend::kernels
