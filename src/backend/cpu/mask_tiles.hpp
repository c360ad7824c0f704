#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scoremod/attention.hpp"

#include "backend/cpu/operand_slices.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend::cpu {

/// Keys that a run of queries needs.
struct NeededKeys {
  IndexSpan keys;       ///< never empty
  bool masked = false;  ///< whether some element may be masked, so that the mask must be evaluated
};

/// Decides which tiles a mask leaves: by the band of its class at once, by interval reasoning for its other terms. One
/// for each thread.
class MaskTiles {
 public:
  /// The analyzer is that of compiled.forward.program; both must outlive this.
  MaskTiles(const compiler::CompiledProblem& compiled, const masks::TileMaskAnalyzer& analyzer,
            std::span<const OperandView> operands, const IndexOffsets& offsets);

  void begin_head(std::int64_t batch, std::int64_t head);
  /// False when every element is proven to be masked.
  bool any(IndexSpan queries, IndexSpan keys);
  /// The parts of `keys` that must be computed for the queries, ascending. Each begins at a multiple of kPanelColumns
  /// from keys.first. Valid until the next call.
  std::span<const NeededKeys> needed(IndexSpan queries, IndexSpan keys);

 private:
  IndexSpan within_band(IndexSpan queries, IndexSpan keys) const;
  masks::TileMask analyze(IndexSpan queries, IndexSpan keys);
  /// Appends keys to the result, which may be next to its last ones and no other than those.
  void append(IndexSpan keys, bool masked);

  const masks::TileMaskAnalyzer& analyzer_;
  masks::TileMaskAnalyzer::Scratch scratch_;
  OperandSlices slices_;
  IndexOffsets offsets_;
  std::int64_t batch_ = 0, head_ = 0;
  bool masks_all_ = false;
  bool has_terms_ = false;  ///< the mask is more than the band
  /// Keys lowest_ <= j - q <= highest_ in local indices; beyond any index where the band has no bound.
  std::int64_t lowest_, highest_;
  std::vector<NeededKeys> needed_;
};

}  // namespace scoremod::backend::cpu
