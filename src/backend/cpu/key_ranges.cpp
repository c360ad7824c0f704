#include "backend/cpu/key_ranges.hpp"

#include <algorithm>

namespace scoremod::backend::cpu {
namespace {

constexpr std::int64_t kUnbounded = std::int64_t{1} << 40;

}  // namespace

KeyRanges::KeyRanges(const compiler::CompiledProblem& compiled, const IndexOffsets& offsets)
    : seq_kv_(compiled.problem.seq_kv), lo_(-kUnbounded), hi_(kUnbounded) {
  const passes::MaskClass& mask = compiled.mask;
  nothing_ = mask.kind == passes::MaskKind::kEmpty;
  band_is_all_ = mask.terms.empty();
  if (!mask.band) return;
  const passes::Band band = passes::top_left(*mask.band, compiled.problem.seq_q, compiled.problem.seq_kv);
  // The band is told in global indices: (j + key offset) - (q + query offset).
  const std::int64_t shift = std::int64_t{offsets.query} - offsets.key;
  if (band.left) lo_ = std::max(-kUnbounded, shift - *band.left);
  if (band.right) hi_ = std::min(kUnbounded, shift + *band.right);
}

KeyRange KeyRanges::needed(std::int64_t first, std::int64_t last) const {
  if (nothing_) return {};
  return {std::max<std::int64_t>(0, first + lo_), std::min(seq_kv_, last - 1 + hi_ + 1)};
}

bool KeyRanges::keeps_all(std::int64_t first_query, std::int64_t last_query, KeyRange keys) const {
  return band_is_all_ && !nothing_ && keys.first >= last_query - 1 + lo_ && keys.last - 1 <= first_query + hi_;
}

}  // namespace scoremod::backend::cpu
