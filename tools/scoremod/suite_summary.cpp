#include "suite_summary.hpp"

#include <algorithm>
#include <cctype>
#include <unordered_map>

namespace scoremod::cli {
namespace {

/// The reason with each number replaced by '#'.
std::string without_numbers(const std::string& reason) {
  std::string out;
  for (const char c : reason) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!digit) out += c;
    if (digit && !out.ends_with('#')) out += '#';
  }
  return out;
}

}  // namespace

PlainAttentionSummary summarize_plain_attention(const SuiteReport& report) {
  PlainAttentionSummary summary;
  std::vector<double> ratios;
  for (const SuiteResult& result : report.results) {
    for (const SuiteOutput& output : result.outputs) {
      if (const auto ratio = output.ratio_to_plain_attention()) ratios.push_back(*ratio);
      summary.far += output.is_near_plain_attention() ? 0 : 1;
    }
  }
  summary.compared = ratios.size();
  if (ratios.empty()) return summary;
  std::sort(ratios.begin(), ratios.end());
  summary.median_ratio = ratios[ratios.size() / 2];
  summary.largest_ratio = ratios.back();
  return summary;
}

std::vector<Refusal> refusals(const SuiteReport& report) {
  std::vector<Refusal> list;
  std::unordered_map<std::string, std::size_t> places;
  for (const SuiteResult& result : report.results) {
    if (result.verdict != SuiteVerdict::kRefused) continue;
    for (const std::string& reason : result.reasons) {
      const auto [place, is_new] = places.try_emplace(without_numbers(reason), list.size());
      if (is_new) list.push_back({reason, result.name, 0});
      ++list[place->second].count;
    }
  }
  std::ranges::stable_sort(list, std::ranges::greater(), &Refusal::count);
  return list;
}

std::vector<const SuiteResult*> worst_results(const SuiteReport& report, std::size_t count) {
  std::vector<const SuiteResult*> list;
  for (const SuiteResult& result : report.results) {
    if (result.worst() != nullptr) list.push_back(&result);
  }
  const auto badness = [](const SuiteResult* result) { return result->worst()->check.badness(); };
  std::ranges::stable_sort(list, std::ranges::greater(), badness);
  list.resize(std::min(list.size(), count));
  return list;
}

}  // namespace scoremod::cli
