#pragma once

#include <string>
#include <vector>

#include "scoremod/check_suite.hpp"

namespace scoremod::cli {

/// A summary of plain attention over all outputs.
struct PlainAttentionSummary {
  std::size_t compared = 0;  ///< outputs with a ratio
  std::size_t far = 0;       ///< of these, not near plain attention
  double median_ratio = 0;
  double largest_ratio = 0;
};

PlainAttentionSummary summarize_plain_attention(const SuiteReport& report);

/// Refusals with the same reason, numbers aside.
struct Refusal {
  std::string reason;   ///< of the first
  std::string example;  ///< the first problem
  std::size_t count = 0;
};

/// The most frequent first. A result with several reasons counts for each.
std::vector<Refusal> refusals(const SuiteReport& report);

/// The results that come nearest to their tolerance, or are furthest beyond it, the worst first.
std::vector<const SuiteResult*> worst_results(const SuiteReport& report, std::size_t count);

}  // namespace scoremod::cli
