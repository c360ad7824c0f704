#include "backend/cudnn/patterns/pattern_table.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include <nlohmann/json.hpp>

#include "backend/cudnn/patterns/nearest_version.hpp"
#include "backend/cudnn/patterns/shipped_patterns.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cudnn {
namespace {

constexpr std::string_view kOneRowSettings = "one_row";

/// Whose patterns are tried where nothing was seen: cuDNN's checks of a modifier's nodes are much the same for all.
constexpr std::string_view kModelArchitecture = "sm_90";

/// Better verdicts first: of several rows the last in this order counts.
constexpr std::array kByWeight{PatternVerdict::kUnknown, PatternVerdict::kRefused, PatternVerdict::kRight,
                               PatternVerdict::kWrong, PatternVerdict::kCrashed};

PatternVerdict worse(PatternVerdict x, PatternVerdict y) {
  const auto weight = [](PatternVerdict v) { return std::find(kByWeight.begin(), kByWeight.end(), v); };
  return weight(x) < weight(y) ? y : x;
}

PatternVerdict parse_verdict(const std::string& text) {
  for (const PatternVerdict verdict : kByWeight) {
    if (text == to_string(verdict)) return verdict;
  }
  // The explorer's own failures (no pattern at all, an environment error) say nothing about cuDNN.
  return PatternVerdict::kUnknown;
}

/// The table of an architecture whose version is nearest; null where the architecture has none of the same major.
const ShippedPatterns* nearest_table(std::string_view architecture, std::string_view cudnn_version) {
  std::vector<std::string_view> versions;
  for (const ShippedPatterns& table : kShippedPatterns) {
    if (table.architecture == architecture) versions.push_back(table.cudnn_version);
  }
  const std::optional<std::string_view> nearest = nearest_version(cudnn_version, versions);
  if (!nearest) return nullptr;
  const auto is_nearest = [&](const ShippedPatterns& table) {
    return table.architecture == architecture && table.cudnn_version == *nearest;
  };
  return &*std::ranges::find_if(kShippedPatterns, is_nearest);
}

}  // namespace

const char* to_string(PatternVerdict verdict) {
  switch (verdict) {
    case PatternVerdict::kUnknown: return "unknown";
    case PatternVerdict::kRight: return "right";
    case PatternVerdict::kWrong: return "wrong";
    case PatternVerdict::kRefused: return "refused";
    case PatternVerdict::kCrashed: return "crashed";
  }
  return "unknown";
}

PatternTable PatternTable::parse(std::string_view json, std::string_view architecture, std::string_view cudnn_version,
                                 RowClass rows) {
  struct Entry {
    PatternVerdict verdict = PatternVerdict::kUnknown;
    double milliseconds = 0;
  };
  std::map<std::pair<Direction, std::string>, Entry> entries;
  try {
    const auto document = nlohmann::json::parse(json);
    for (const auto& row : document.at("results")) {
      if (row.at("architecture") != architecture || row.at("cudnn") != cudnn_version) continue;
      const bool one_row = row.at("setting").get<std::string>().starts_with(kOneRowSettings);
      if (one_row != (rows == RowClass::kOneRow)) continue;
      const auto direction = row.at("direction") == "backward" ? Direction::kBackward : Direction::kForward;
      Entry& entry = entries[{direction, row.at("pattern").get<std::string>()}];
      entry.verdict = worse(entry.verdict, parse_verdict(row.at("verdict").get<std::string>()));
      if (row.at("ms").is_number()) entry.milliseconds = std::max(entry.milliseconds, row.at("ms").get<double>());
    }
  } catch (const nlohmann::json::exception& error) {
    fail_argument("expected a table of the pattern explorer (an object with 'results'), found something else: ",
                  error.what(), "; make it anew with scoremod_cudnn explore");
  }
  auto parsed = std::make_shared<Parsed>();
  for (const auto& [key, entry] : entries) {
    const auto name = static_cast<std::uint32_t>(parsed->names.size());
    parsed->decisions.push_back({name, rows, key.first, entry.verdict, entry.milliseconds});
    parsed->names += key.second;
    parsed->names += '\0';
  }
  PatternTable table(parsed->decisions, parsed->names.c_str(), rows,
                     {std::string(architecture), std::string(cudnn_version)}, true);
  table.parsed_ = std::move(parsed);
  return table;
}

PatternTable::PatternTable(std::span<const PatternDecision> decisions, const char* names, RowClass rows,
                           PatternOrigin origin, bool verified)
    : names_(names), origin_(std::move(origin)), verified_(verified) {
  const auto of_rows = std::ranges::equal_range(decisions, rows, {}, &PatternDecision::rows);
  decisions_ = {of_rows.begin(), of_rows.end()};
}

const PatternDecision* PatternTable::decision(std::string_view pattern, Direction direction) const {
  const auto place = [&](const PatternDecision& each) { return std::pair(each.direction, name(each)); };
  const std::pair wanted(direction, pattern);
  const auto found = std::ranges::lower_bound(decisions_, wanted, {}, place);
  return found == decisions_.end() || place(*found) != wanted ? nullptr : &*found;
}

PatternVerdict PatternTable::find(std::string_view pattern, Direction direction) const {
  const PatternDecision* found = decision(pattern, direction);
  return found == nullptr ? PatternVerdict::kUnknown : found->verdict;
}

double PatternTable::milliseconds(std::string_view pattern, Direction direction) const {
  const PatternDecision* found = decision(pattern, direction);
  return found == nullptr ? 0 : found->milliseconds;
}

std::string PatternTable::seen_on() const {
  return concat(origin_.architecture, " with cuDNN ", origin_.cudnn_version);
}

PatternTable shipped_pattern_table(std::string_view architecture, std::string_view cudnn_version, RowClass rows) {
  const ShippedPatterns* nearest = nearest_table(architecture, cudnn_version);
  if (nearest == nullptr) nearest = nearest_table(kModelArchitecture, cudnn_version);
  if (nearest == nullptr) return {};
  const bool verified = nearest->architecture == architecture && nearest->cudnn_version == cudnn_version;
  return {nearest->decisions,
          kShippedPatternNames,
          rows,
          {std::string(nearest->architecture), std::string(nearest->cudnn_version)},
          verified};
}

}  // namespace scoremod::backend::cudnn
