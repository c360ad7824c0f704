#include "support/mask_check.hpp"

#include "base/fail.hpp"
#include "support/mask_data.hpp"

namespace scoremod::test {
namespace {

using masks::MaskClass;
using masks::MaskKind;
using masks::MaskTerm;
using Values = std::vector<ir::Scalar<float>>;

bool in_band(const masks::Band& band, const masks::MaskContext& context, const Element4& at) {
  std::int64_t d = std::int64_t{at[3]} - at[2];
  if (band.anchor == masks::BandAnchor::kBottomRight) d -= context.seq_kv - context.seq_q;
  return (!band.left || d >= -*band.left) && (!band.right || d <= *band.right);
}

bool equal(Type type, const ir::Scalar<float>& x, const ir::Scalar<float>& y) {
  return type == Type::kF32 ? x.f == y.f : type == Type::kI32 ? x.i == y.i : x.b == y.b;
}

/// The meaning of a term by its kind and fields alone.
bool promised(const MaskTerm& term, const Program& program, const Values& values, const Element4& at) {
  const std::int64_t bound = term.bound.offset + (term.bound.node == kNoNode ? 0 : values[term.bound.node].i);
  switch (term.kind) {
    case MaskKind::kPrefix: return at[3] < bound || at[3] <= at[2];
    case MaskKind::kPadding: {
      const std::int32_t index = at[term.axis == Axis::kQuery ? 2 : 3];
      return term.from_start ? index >= bound : index < bound;
    }
    case MaskKind::kDocuments:
      return equal(program.nodes()[term.query_id].type, values[term.query_id], values[term.key_id]);
    default: return values[term.node].b;
  }
}

std::string check_element(const Program& program, const MaskClass& mask, const masks::MaskContext& context,
                          const MaskData& data, const Element4& at) {
  const Values values = data.evaluate(at);
  const bool keep = program.keep() == kNoNode || values[program.keep()].b;
  const bool band = mask.kind != MaskKind::kEmpty && (!mask.band || in_band(*mask.band, context, at));
  bool by_nodes = band;
  bool by_kinds = band;
  for (const MaskTerm& term : mask.terms) {
    by_nodes = by_nodes && values[term.node].b;
    by_kinds = by_kinds && promised(term, program, values, at);
  }
  if (by_nodes == keep && by_kinds == keep) return "";
  return concat("at b ", at[0], ", h ", at[1], ", q_idx ", at[2], ", kv_idx ", at[3], ": keep is ", keep,
                ", the terms' nodes say ", by_nodes, ", their kinds say ", by_kinds, "\n",
                masks::describe(mask, program), "\n", program.to_string());
}

}  // namespace

std::string check_split(const Program& program, const masks::MaskClass& mask, const masks::MaskContext& context,
                        std::uint64_t seed) {
  const MaskData data(program, seed);
  constexpr std::int64_t kSide = 9;
  const std::int64_t bases[] = {0, kSide, 508, (std::int64_t{1} << 24) - 4, context.index_limit - kSide};
  for (const std::int64_t q_base : bases) {
    for (const std::int64_t kv_base : bases) {
      if (q_base + kSide > context.index_limit || kv_base + kSide > context.index_limit) continue;
      for (std::int64_t i = 0; i < kSide * kSide; ++i) {
        const auto place = static_cast<std::int32_t>((q_base + kv_base + i) % 2);
        const Element4 at{place, 1 - place, static_cast<std::int32_t>(q_base + i / kSide),
                          static_cast<std::int32_t>(kv_base + i % kSide)};
        std::string mismatch = check_element(program, mask, context, data, at);
        if (!mismatch.empty()) return mismatch;
      }
    }
  }
  return "";
}

}  // namespace scoremod::test
