#include "backend/cpu/mask_tiles.hpp"

#include <algorithm>

#include "backend/cpu/matrix_product.hpp"

namespace scoremod::backend::cpu {
namespace {

constexpr std::int64_t kUnbounded = std::int64_t{1} << 40;
constexpr auto kPanel = static_cast<std::int64_t>(kPanelColumns);
/// Keys that are classified together if a tile as a whole is mixed: the smallest block that people use in block-sparse
/// masks. Classifying costs little compared with the mask of so many elements.
constexpr std::int64_t kRun = 2 * kPanel;

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
  // The band is in global indices: (j + key offset) - (q + query offset).
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

bool MaskTiles::any(IndexSpan queries, IndexSpan keys) {
  if (masks_all_) return false;
  const IndexSpan within = within_band(queries, keys);
  return !within.empty() && (!has_terms_ || analyze(queries, within) != masks::TileMask::kEmpty);
}

void MaskTiles::append(IndexSpan keys, bool masked) {
  if (!needed_.empty() && needed_.back().keys.last == keys.first && needed_.back().masked == masked) {
    needed_.back().keys.last = keys.last;
  } else {
    needed_.push_back({keys, masked});
  }
}

std::span<const NeededKeys> MaskTiles::needed(IndexSpan queries, IndexSpan keys) {
  needed_.clear();
  if (masks_all_) return needed_;
  const IndexSpan within = within_band(queries, keys);
  if (within.empty()) return needed_;
  if (!has_terms_) {
    const bool all = within.first >= queries.last - 1 + lowest_ && within.last - 1 <= queries.first + highest_;
    append(within, !all);
    return needed_;
  }
  const masks::TileMask all = analyze(queries, within);
  if (all == masks::TileMask::kFull) append(within, false);
  if (all != masks::TileMask::kMixed) return needed_;
  for (IndexSpan run = within; run.first < within.last; run.first = run.last) {
    run.last = std::min(keys.first + ((run.first - keys.first) / kRun + 1) * kRun, within.last);
    const masks::TileMask mask = analyze(queries, run);
    if (mask != masks::TileMask::kEmpty) append(run, mask == masks::TileMask::kMixed);
  }
  return needed_;
}

}  // namespace scoremod::backend::cpu
