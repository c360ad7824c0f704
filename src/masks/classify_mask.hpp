#pragma once

#include <cstdint>

#include "scoremod/program.hpp"

#include "masks/mask_class.hpp"

namespace scoremod::masks {

/// Facts about the problem for classifying a mask. The sizes choose a band's anchor; they do not bound the indices,
/// because a call may add offsets to them.
struct MaskContext {
  std::int64_t seq_q = 1;
  std::int64_t seq_kv = 1;
  /// Every global index of every call is below this. Comparisons in f32 are exact, and so recognised, only where it is
  /// at most 2^24: lower it when the offsets are known.
  std::int64_t index_limit = kIndexLimit;
};

/// Classifies the keep root: keep == band AND terms, for every (b, h, q_idx, kv_idx) below the context's index_limit
/// and any operand values. Terms that cannot be classified are kGeneral. Finds most after normalize_mask.
///
/// Steps grow with the program's size, and those of proofs are bounded whatever it is; `work`, if not null, receives
/// how many the proofs took.
MaskClass classify_mask(const Program& program, const MaskContext& context, std::int64_t* work = nullptr);

}  // namespace scoremod::masks
