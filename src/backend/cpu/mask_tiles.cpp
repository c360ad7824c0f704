#include "backend/cpu/mask_tiles.hpp"

#include <algorithm>

#include "backend/cpu/matrix_product.hpp"

namespace scoremod::backend::cpu {
namespace {

constexpr std::int64_t kUnbounded = std::int64_t{1} << 40;
/// Keys that are proven masked together at the ends of a tile: a multiple of kPanelColumns.
constexpr std::int64_t kTrim = 4 * kPanelColumns;

}  // namespace

MaskTiles::MaskTiles(const compiler::CompiledProblem& compiled, const masks::TileMaskAnalyzer& analyzer,
                     std::span<const OperandView> operands, const IndexOffsets& offsets)
    : analyzer_(analyzer),
      scratch_(analyzer.make_scratch()),
      slices_(compiled.forward.program, operands, compiled.problem.seq_kv),
      offsets_(offsets),
      masks_all_(compiled.forward.mask.kind == masks::MaskKind::kEmpty),
      has_terms_(!compiled.forward.mask.terms.empty()),
      lowest_(-kUnbounded),
      highest_(kUnbounded) {
  if (!compiled.forward.mask.band) return;
  const masks::Band band =
      masks::top_left(*compiled.forward.mask.band, compiled.problem.seq_q, compiled.problem.seq_kv);
  // The band is told in global indices: (j + key offset) - (q + query offset).
  const std::int64_t shift = std::int64_t{offsets.query} - offsets.key;
  if (band.left) lowest_ = std::max(-kUnbounded, shift - *band.left);
  if (band.right) highest_ = std::min(kUnbounded, shift + *band.right);
}

void MaskTiles::begin_head(std::int64_t batch, std::int64_t head) {
  batch_ = batch;
  head_ = head;
  if (has_terms_) slices_.begin_head(batch, head);
}

IndexSpan MaskTiles::within_band(IndexSpan queries, IndexSpan keys) const {
  const std::int64_t skipped = std::max<std::int64_t>(queries.first + lowest_ - keys.first, 0);
  constexpr auto kPanel = static_cast<std::int64_t>(kPanelColumns);
  return {keys.first + skipped / kPanel * kPanel, std::min(keys.last, queries.last + highest_)};
}

masks::TileMask MaskTiles::analyze(IndexSpan queries, IndexSpan keys) {
  const auto global = [](std::int64_t first, std::int64_t last, std::int32_t offset) {
    return analysis::IndexRange{first + offset, last + offset};
  };
  slices_.set_box(queries, keys);
  const analysis::IndexBox box{global(batch_, batch_, offsets_.batch), global(head_, head_, offsets_.head),
                               global(queries.first, queries.last - 1, offsets_.query),
                               global(keys.first, keys.last - 1, offsets_.key)};
  return analyzer_.analyze(box, slices_, scratch_);
}

IndexSpan MaskTiles::trim(IndexSpan queries, IndexSpan keys) {
  while (keys.last - keys.first > kTrim) {
    if (analyze(queries, {keys.first, keys.first + kTrim}) != masks::TileMask::kEmpty) break;
    keys.first += kTrim;
  }
  while (keys.last - keys.first > kTrim) {
    const std::int64_t last = keys.first + (keys.last - keys.first - 1) / kTrim * kTrim;
    if (analyze(queries, {last, keys.last}) != masks::TileMask::kEmpty) break;
    keys.last = last;
  }
  return keys;
}

NeededKeys MaskTiles::needed(IndexSpan queries, IndexSpan keys) {
  if (masks_all_) return {};
  const IndexSpan within = within_band(queries, keys);
  if (within.empty()) return {};
  if (!has_terms_) {
    const bool all = within.first >= queries.last - 1 + lowest_ && within.last - 1 <= queries.first + highest_;
    return {within, !all};
  }
  switch (analyze(queries, within)) {
    case masks::TileMask::kEmpty: return {};
    case masks::TileMask::kFull: return {within, false};
    case masks::TileMask::kMixed: break;
  }
  return {trim(queries, within), true};
}

}  // namespace scoremod::backend::cpu
