#include "passes/mask_class.hpp"

#include "base/fail.hpp"

namespace scoremod::passes {
namespace {

std::string name_of(const Program& program, NodeId id) {
  const Node& node = program.nodes()[id];
  if (node.op == Op::kOperand) return program.operands()[node.payload].name;
  if (node.op == Op::kGather) return program.operands()[node.payload].name + "[...]";
  return concat("node ", id);
}

std::string describe(const MaskBound& bound, const Program& program) {
  if (bound.node == kNoNode) return concat(bound.offset);
  const std::string name = name_of(program, bound.node);
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

std::string describe(const MaskTerm& term, const Program& program) {
  switch (term.kind) {
    case MaskKind::kPrefix: return concat("kv_idx < ", describe(term.bound, program), " or kv_idx <= q_idx");
    case MaskKind::kPadding:
      return concat(term.axis == Axis::kQuery ? "q_idx" : "kv_idx", term.from_start ? " >= " : " < ",
                    describe(term.bound, program));
    case MaskKind::kDocuments: return concat(name_of(program, term.query_id), " == ", name_of(program, term.key_id));
    default: return name_of(program, term.node);
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

std::string describe(const MaskClass& mask, const Program& program) {
  std::string out = to_string(mask.kind);
  std::string separator = ": ";
  if (mask.band) {
    out += separator + describe(*mask.band);
    separator = "; ";
  }
  for (const MaskTerm& term : mask.terms) {
    out += separator + describe(term, program);
    separator = "; ";
  }
  return out;
}

}  // namespace scoremod::passes
