#pragma once

#include <cstdint>
#include <span>

#include "scoremod/call.hpp"
#include "scoremod/problem.hpp"

#include "problem/dropout_mask.hpp"

namespace scoremod::problem {

/// Words of a batch's row of the operand 'dropout_keys'; with the places of a shard's queries and keys in the second
/// case.
inline constexpr std::int64_t kDropoutKeyWords = 4, kPlacedDropoutKeyWords = 10;

/// Maps the indices of one axis to those of the whole sequence: a shard has stripes of its tokens. All numbers have 32
/// bits, as counters do, so that every word is valid.
struct DropoutPlaces {
  std::uint32_t first = 0;
  std::uint32_t tokens = 0;  ///< of a stripe; 0: the indices are a single one
  std::uint32_t step = 0;    ///< from the beginning of a stripe to that of the next

  std::int64_t at(std::int64_t index) const {
    const auto i = static_cast<std::uint32_t>(index);
    return tokens == 0 ? first + i : first + i / tokens * step + i % tokens;
  }
  /// How many of the indices from this one on lie one after the other, at most `most`.
  std::size_t run(std::int64_t index, std::size_t most) const;
};

/// Which weights of one call on the host are dropped, by the call's own indices. It follows from its seed and offset,
/// or from its dropout keys.
class CallDropout {
 public:
  /// `operands` are the call's, in the order of the declarations, and are read when it is asked. The problem has its
  /// implied operands.
  CallDropout(const AttentionProblem& problem, std::uint64_t seed, std::uint64_t offset, const IndexOffsets& offsets,
              std::span<const void* const> operands);

  /// The factor of the weights that are kept.
  double factor() const { return mask_.factor(); }

  bool keeps(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t kv) const {
    const Batch batch = of_batch(b);
    return batch.mask.keeps(batch.counter, batch.first_head + h, batch.queries.at(offsets_.query + q),
                            batch.keys.at(offsets_.key + kv));
  }

  /// Sets weights[i], of the key at first + i, to zero where it is dropped.
  void drop(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t first, std::size_t count,
            float* weights) const;

 private:
  /// The state that the elements of one batch share.
  struct Batch {
    DropoutMask mask;
    std::int64_t counter, first_head;
    DropoutPlaces queries, keys;
  };
  Batch of_batch(std::int64_t b) const;

  const DropoutMask mask_;
  const IndexOffsets offsets_;
  const float probability_;
  std::span<const void* const> operands_;
  const OperandSpec* keys_ = nullptr;  ///< null unless the call has dropout keys
  std::uint32_t operand_ = 0;          ///< its number
};

}  // namespace scoremod::problem
