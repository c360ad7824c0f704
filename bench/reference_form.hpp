#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "bench_case.hpp"

namespace scoremod::bench {

using measure::BenchCase;
using measure::Direction;

/// A case's attention as somebody would write it by hand with cudnn-frontend, from its "reference". Parts of the score
/// come first, then masks by comparison, then the causal band, which cuDNN recognises when it is last.
struct ReferenceForm {
  bool causal = false;
  std::optional<std::int64_t> window;  ///< q - kv < window; only beside causal
  std::optional<float> soft_cap;
  bool relative_bias = false;  ///< s + (q - kv)
  std::string alibi;           ///< the operand of slopes, f32 [h]: s + slope * (kv - q)
  std::string bias;            ///< the operand that is added, [h, q_idx, kv_idx]
  /// The bias goes in by cuDNN's own attribute and not as a modifier; its gradient is then computed where it is wanted.
  bool bias_attribute = false;
  std::optional<std::int64_t> prefix;          ///< keeps kv < prefix or kv <= q
  std::string query_documents, key_documents;  ///< operands of ids, i32 [b, q_idx] and [b, kv_idx]
  std::string lengths;                         ///< the operand of valid keys, i32 [b]

  /// Whether the frontend's flags say it all, so that there is no modifier.
  bool only_flags() const;
};

/// The form of a case; none where its "reference" is null, or where the case wants gradients of operands that the form
/// does not compute. Throws Error(kInvalidArgument).
std::optional<ReferenceForm> reference_form(const BenchCase& bench_case);

}  // namespace scoremod::bench
