#pragma once

#include <cstdint>

#include "scoremod/attention.hpp"

#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::cpu {

/// Local key indices first <= j < last.
struct KeyRange {
  std::int64_t first = 0, last = 0;
  bool empty() const { return first >= last; }
};

/// Which keys a run of queries needs, as far as the mask's band tells.
class KeyRanges {
 public:
  KeyRanges(const compiler::CompiledProblem& compiled, const IndexOffsets& offsets);

  /// Holds every key that one of the local queries first .. last - 1 keeps.
  KeyRange needed(std::int64_t first, std::int64_t last) const;
  /// True only if each of these queries keeps each of these keys.
  bool keeps_all(std::int64_t first_query, std::int64_t last_query, KeyRange keys) const;

 private:
  std::int64_t seq_kv_;
  bool nothing_ = false;     ///< every key of every query is masked
  bool band_is_all_ = true;  ///< the mask has no terms beside the band
  /// Keys lo_ <= j - q <= hi_ in local indices; beyond any index where the band has no bound.
  std::int64_t lo_, hi_;
};

}  // namespace scoremod::backend::cpu
