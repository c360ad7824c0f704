#pragma once

#include <cstdint>
#include <span>

#include "scoremod/call.hpp"
#include "scoremod/problem.hpp"

#include "problem/dropout_mask.hpp"

namespace scoremod::problem {

/// Words of a batch's row of the operand 'dropout_keys'.
inline constexpr std::int64_t kDropoutKeyWords = 4;

/// Which weights of one call on the host are dropped, by the call's own indices: from its seed and offset, or from the
/// keys that it binds.
class CallDropout {
 public:
  /// `operands` are the call's, in the order of the declarations, and are read when it is asked. The problem has its
  /// implied operands.
  CallDropout(const AttentionProblem& problem, std::uint64_t seed, std::uint64_t offset, const IndexOffsets& offsets,
              std::span<const void* const> operands);

  /// What a weight that is left is multiplied by.
  double factor() const { return mask_.factor(); }

  bool keeps(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) const {
    const Batch batch = of_batch(b);
    return batch.mask.keeps(batch.counter, batch.first_head + h, offsets_.query + q, offsets_.key + kv);
  }

  /// Sets weights[i], of the key at first + i, to zero where it is dropped.
  void drop(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t first, std::size_t count,
            float* weights) const {
    const Batch batch = of_batch(b);
    batch.mask.drop(batch.counter, batch.first_head + h, offsets_.query + q, offsets_.key + first, count, weights);
  }

 private:
  /// What the elements of one batch have alike.
  struct Batch {
    DropoutMask mask;
    std::int64_t counter, first_head;
  };
  Batch of_batch(std::int64_t b) const;

  const DropoutMask mask_;
  const IndexOffsets offsets_;
  const float probability_;
  std::span<const void* const> operands_;
  const OperandSpec* keys_ = nullptr;  ///< where the call binds keys
  std::uint32_t operand_ = 0;          ///< its number
};

}  // namespace scoremod::problem
