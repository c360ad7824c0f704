#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "scoremod/program.hpp"

namespace scoremod::masks {

/// Every global index (b, h, q_idx, kv_idx: local index plus the call's offset) must satisfy 0 <= index < kIndexLimit.
/// Below it the difference of two indices, and that difference plus a constant of magnitude up to kIndexLimit, cannot
/// wrap in i32.
inline constexpr std::int64_t kIndexLimit = std::int64_t{1} << 30;

/// The shape of a mask, from the facts known when the program is compiled. docs/reference/masks.md has each with its
/// bounds.
enum class MaskKind : std::uint8_t {
  kFull,       ///< nothing is masked
  kEmpty,      ///< everything is masked
  kBand,       ///< the band alone
  kPrefix,     ///< band (if any) AND a prefix that all queries see, then causal: kv < P or kv <= q
  kPadding,    ///< band (if any) AND terms such as kv < length[b] or q < length[b]
  kDocuments,  ///< band (if any) AND id of the query == id of the key
  kGeneral,    ///< band (if any) AND terms of other or of several kinds
};
/// "full", "empty", "band", "prefix", "padding", "documents" or "general".
const char* to_string(MaskKind kind);

/// Which diagonal a band follows.
enum class BandAnchor : std::uint8_t {
  kTopLeft,      ///< d = kv - q
  kBottomRight,  ///< d = kv - q - (seq_kv - seq_q): the last query sees the last key
};

/// Keeps a key when -left <= d <= right, both ends included; an absent end is unbounded. d is given by the anchor, from
/// global indices. Causal is {absent, 0}; strictly causal {absent, -1}; a causal window of w keys {w - 1, 0}.
struct Band {
  std::optional<std::int64_t> left;
  std::optional<std::int64_t> right;
  BandAnchor anchor = BandAnchor::kTopLeft;

  bool operator==(const Band&) const = default;
};

/// The band measured from the top-left diagonal, d = kv - q.
Band top_left(const Band& band, std::int64_t seq_q, std::int64_t seq_kv);
/// The inverse: a band that ends at the last query and key of these sizes is measured from the bottom-right diagonal.
Band anchored(const Band& top_left, std::int64_t seq_q, std::int64_t seq_kv);

/// A number that is the same for all (q, kv) of one (b, h). It is the value of an i32 node plus an offset, in exact
/// (64-bit) arithmetic; without a node, the offset alone.
struct MaskBound {
  NodeId node = kNoNode;
  std::int64_t offset = 0;

  bool operator==(const MaskBound&) const = default;
};

/// One AND term of a mask beside the band.
struct MaskTerm {
  /// kPrefix:    kv < bound or kv <= q.
  /// kPadding:   the index of `axis` is < bound (or >= bound where `from_start`: padding before the sequence).
  /// kDocuments: the value of query_id, which does not depend on kv, equals that of key_id, which does not depend on q.
  /// kGeneral:   only the node says.
  MaskKind kind = MaskKind::kGeneral;
  NodeId node = kNoNode;  ///< the whole term: a bool node of the program that was classified
  MaskBound bound;
  Axis axis = Axis::kKey;
  bool from_start = false;
  NodeId query_id = kNoNode;
  NodeId key_id = kNoNode;

  bool operator==(const MaskTerm&) const = default;
};

/// The classified mask of a keep root. For every element with valid indices, keep == (band AND all terms); kFull keeps
/// all, kEmpty none. The band is the tightest that follows from the terms, so keys outside it can be skipped.
struct MaskClass {
  MaskKind kind = MaskKind::kFull;
  std::optional<Band> band;
  std::vector<MaskTerm> terms;

  bool operator==(const MaskClass&) const = default;
};

/// One line for people, such as "padding: kv_idx - q_idx <= 0; kv_idx < length". `program` is the one that was
/// classified.
std::string describe(const MaskClass& mask, const Program& program);

}  // namespace scoremod::masks
