#include "backend/kernels/attention_texts.hpp"

#include <span>
#include <string_view>

#include "backend/cuda/kernel_text.hpp"
#include "backend/cuda/program_source.hpp"
#include "base/bytes.hpp"
#include "base/concat.hpp"
#include "base/fail.hpp"

namespace scoremod::embedded {
extern const std::string_view kDropoutArgument, kDropoutMask, kAttentionArguments, kAttentionSettings,
    kAttentionPrimitives, kAttentionElements, kAttentionTiles, kAttentionProducts, kAttentionDropout, kAttentionProgram,
    kAttentionMaskRanges, kAttentionTileStates, kAttentionSoftmax, kAttentionForward, kAttentionRowTerms,
    kAttentionBackwardRows, kAttentionQueryGradients, kAttentionBackwardQueries, kAttentionKeyGradients,
    kAttentionBackwardKeys, kAttentionOperandTargets, kAttentionOperandTotals, kHopperPrimitives, kHopperTiles,
    kHopperForwardTiles, kHopperForward, kHopperPersistentForward, kHopperBackwardQueries, kHopperKeyGroups,
    kHopperBackwardKeys, kHopperQuerySums, kHopperBackwardFused, kHopperWriteQueries, kAttentionPackedRows,
    kAttentionParts, kAttentionFewQueries, kHopperFewQueries, kAttentionDifferences, kAttentionDiagonals,
    kAttentionDifferenceTotals, kAttentionExactTotals, kExactSum;
}  // namespace scoremod::embedded

namespace scoremod::backend::kernels {
namespace {

std::string text_of_forward(const TileShape& shape) {
  switch (shape.family) {
    case Family::kPortable: return std::string(embedded::kAttentionForward);
    case Family::kFewQueries:
    case Family::kHopperFewQueries:
      return concat(embedded::kAttentionPackedRows, embedded::kAttentionParts,
                    is_hopper(shape.family) ? embedded::kHopperFewQueries : embedded::kAttentionFewQueries);
    case Family::kHopper:
      return concat(embedded::kHopperForwardTiles,
                    shape.persistent_blocks > 0 ? embedded::kHopperPersistentForward : embedded::kHopperForward);
  }
  fail_bug("unknown family of kernels ", static_cast<int>(shape.family));
}

/// With the kernel of dk, or of both, and with that of dv, which does nothing where the other one makes both.
std::string text_of_keys(const TileShape& shape, bool keys, bool values) {
  const bool hopper = shape.family == Family::kHopper;
  const std::string_view before = hopper ? embedded::kHopperKeyGroups : "";
  if (shape.fused) return concat(embedded::kAttentionKeyGradients, before, embedded::kHopperBackwardFused);
  const std::string_view text = hopper ? embedded::kHopperBackwardKeys : embedded::kAttentionBackwardKeys;
  return concat(embedded::kAttentionKeyGradients, before,
                cuda::fill(text, {{"keys", keys ? cuda::part(text, "keys") : ""},
                                  {"values", values ? cuda::part(text, "values") : ""}}));
}

}  // namespace

std::string text_of_queries(const TileShape& shape) {
  const bool hopper = shape.family == Family::kHopper;
  return concat(embedded::kAttentionQueryGradients, shape.fused ? embedded::kHopperWriteQueries
                                                    : hopper    ? embedded::kHopperBackwardQueries
                                                                : embedded::kAttentionBackwardQueries);
}
std::string text_of_keys(const TileShape& shape) { return text_of_keys(shape, true, true); }
std::vector<std::string> texts_of_keys(const TileShape& shape) {
  if (shape.split_keys) return {text_of_keys(shape, true, false), text_of_keys(shape, false, true)};
  return {text_of_keys(shape)};
}
std::string text_of_rows(const TileShape& shape) {
  return concat(embedded::kAttentionRowTerms, embedded::kAttentionDiagonals,
                shape.fused ? embedded::kHopperQuerySums : "");
}
std::string_view text_of_row_kernel() { return embedded::kAttentionBackwardRows; }

std::string text_of_kernels(Direction direction, const TileShape& shape) {
  if (direction == Direction::kForward) return concat(embedded::kAttentionSoftmax, text_of_forward(shape));
  return concat(text_of_rows(shape), text_of_row_kernel(), text_of_queries(shape), text_of_keys(shape));
}

std::uint64_t revision_of_texts() {
  static const std::uint64_t revision = [] {
    const std::string all = concat(
        embedded::kProgramPrelude, embedded::kDropoutArgument, embedded::kDropoutMask, embedded::kAttentionArguments,
        embedded::kAttentionSettings, embedded::kAttentionPrimitives, embedded::kAttentionElements,
        embedded::kAttentionTiles, embedded::kAttentionProducts, embedded::kAttentionDropout,
        embedded::kAttentionProgram, embedded::kAttentionMaskRanges, embedded::kAttentionTileStates,
        embedded::kAttentionSoftmax, embedded::kAttentionForward, embedded::kAttentionRowTerms,
        embedded::kAttentionBackwardRows, embedded::kAttentionQueryGradients, embedded::kAttentionBackwardQueries,
        embedded::kAttentionKeyGradients, embedded::kAttentionBackwardKeys, embedded::kAttentionOperandTargets,
        embedded::kAttentionOperandTotals, embedded::kHopperPrimitives, embedded::kHopperTiles,
        embedded::kHopperForwardTiles, embedded::kHopperForward, embedded::kHopperPersistentForward,
        embedded::kHopperBackwardQueries, embedded::kHopperKeyGroups, embedded::kHopperBackwardKeys,
        embedded::kHopperQuerySums, embedded::kHopperBackwardFused, embedded::kHopperWriteQueries,
        embedded::kAttentionPackedRows, embedded::kAttentionParts, embedded::kAttentionFewQueries,
        embedded::kHopperFewQueries, embedded::kAttentionDifferences, embedded::kAttentionDiagonals,
        embedded::kAttentionDifferenceTotals, embedded::kAttentionExactTotals, embedded::kExactSum);
    return fnv1a(std::as_bytes(std::span(all)));
  }();
  return revision;
}

}  // namespace scoremod::backend::kernels
