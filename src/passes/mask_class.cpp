#include "passes/mask_class.hpp"

namespace scoremod::passes {

const char* to_string(MaskKind kind) {
  switch (kind) {
    case MaskKind::kFull: return "full";
    case MaskKind::kEmpty: return "empty";
    case MaskKind::kBand: return "band";
    case MaskKind::kPrefix: return "prefix";
    case MaskKind::kPadding: return "padding";
    case MaskKind::kDocuments: return "documents";
    case MaskKind::kGeneral: return "general";
  }
  return "unknown";
}

Band top_left(const Band& band, std::int64_t seq_q, std::int64_t seq_kv) {
  Band out = band;
  if (band.anchor == BandAnchor::kTopLeft) return out;
  const std::int64_t shift = seq_kv - seq_q;
  if (out.left) *out.left -= shift;
  if (out.right) *out.right += shift;
  out.anchor = BandAnchor::kTopLeft;
  return out;
}

}  // namespace scoremod::passes
