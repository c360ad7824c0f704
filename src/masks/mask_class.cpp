#include "masks/mask_class.hpp"

#include "base/fail.hpp"
#include "ir/print.hpp"

namespace scoremod::masks {
namespace {

using Texts = std::vector<std::string>;

std::string describe(const MaskBound& bound, const Texts& texts) {
  if (bound.node == kNoNode) return concat(bound.offset);
  const std::string& name = texts[bound.node];
  if (bound.offset == 0) return name;
  return concat(name, bound.offset > 0 ? " + " : " - ", bound.offset > 0 ? bound.offset : -bound.offset);
}

std::string describe(const Band& band) {
  std::string out = "kv_idx - q_idx";
  if (band.anchor == BandAnchor::kBottomRight) out += " - (seq_kv - seq_q)";
  if (band.left) out = concat(-*band.left, " <= ", out);
  if (band.right) out += concat(" <= ", *band.right);
  return out;
}

std::string describe(const MaskTerm& term, const Texts& texts) {
  switch (term.kind) {
    case MaskKind::kPrefix: return concat("kv_idx < ", describe(term.bound, texts), " or kv_idx <= q_idx");
    case MaskKind::kPadding:
      return concat(term.axis == Axis::kQuery ? "q_idx" : "kv_idx", term.from_start ? " >= " : " < ",
                    describe(term.bound, texts));
    case MaskKind::kDocuments: return concat(texts[term.query_id], " == ", texts[term.key_id]);
    default: return texts[term.node];
  }
}

}  // namespace

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

Band anchored(const Band& top_left, std::int64_t seq_q, std::int64_t seq_kv) {
  Band out = top_left;
  const std::int64_t shift = seq_kv - seq_q;
  const bool is_bottom_right = shift != 0 && (out.right ? *out.right == shift : out.left && *out.left == -shift);
  if (!is_bottom_right) return out;
  if (out.left) *out.left += shift;
  if (out.right) *out.right -= shift;
  out.anchor = BandAnchor::kBottomRight;
  return out;
}

std::string describe(const MaskClass& mask, const Program& program) {
  std::string out = to_string(mask.kind);
  std::string separator = ": ";
  if (mask.band) {
    out += separator + describe(*mask.band);
    separator = "; ";
  }
  const Texts texts = ir::print_nodes(program);
  for (const MaskTerm& term : mask.terms) {
    out += separator + describe(term, texts);
    separator = "; ";
  }
  return out;
}

}  // namespace scoremod::masks
