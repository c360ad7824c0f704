#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "scoremod/program.hpp"

namespace scoremod::passes {

/// The shape of a mask, from what is known when the program is compiled.
enum class MaskKind : std::uint8_t {
  kFull,       ///< nothing is masked
  kEmpty,      ///< everything is masked
  kBand,       ///< -left <= (kv - q - shift) <= right; see Band
  kPrefix,     ///< kv < P or kv <= q: a prefix that all see, then causal
  kPadding,    ///< kv < length[b] (and, or, q < length[b])
  kDocuments,  ///< id[b, q] == id[b, kv]
  kGeneral,    ///< anything else
};
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

/// keep == band AND rest, for every element. `rest` is kNoNode when the band says all.
struct MaskClass {
  MaskKind kind = MaskKind::kFull;
  std::optional<Band> band;
  NodeId rest = kNoNode;               ///< a bool node of the program that was classified
  std::optional<std::int64_t> prefix;  ///< kPrefix with a constant length P
};

}  // namespace scoremod::passes
