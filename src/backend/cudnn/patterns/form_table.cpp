#include "backend/cudnn/patterns/form_table.hpp"

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

/// Whose forms are tried where nothing was seen: cuDNN's checks of a modifier's nodes are much the same for all.
constexpr std::string_view kModelArchitecture = "sm_90";

/// Better verdicts first: of several rows the last in this order counts.
constexpr std::array kByWeight{FormVerdict::kUnknown, FormVerdict::kRefused, FormVerdict::kRight, FormVerdict::kWrong,
                               FormVerdict::kCrashed};

FormVerdict worse(FormVerdict x, FormVerdict y) {
  const auto weight = [](FormVerdict v) { return std::find(kByWeight.begin(), kByWeight.end(), v); };
  return weight(x) < weight(y) ? y : x;
}

FormVerdict parse_verdict(const std::string& text) {
  for (const FormVerdict verdict : kByWeight) {
    if (text == to_string(verdict)) return verdict;
  }
  // The explorer's own failures (no form at all, an environment error) say nothing about cuDNN.
  return FormVerdict::kUnknown;
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

const char* to_string(FormVerdict verdict) {
  switch (verdict) {
    case FormVerdict::kUnknown: return "unknown";
    case FormVerdict::kRight: return "right";
    case FormVerdict::kWrong: return "wrong";
    case FormVerdict::kRefused: return "refused";
    case FormVerdict::kCrashed: return "crashed";
  }
  return "unknown";
}

FormTable FormTable::parse(std::string_view json, std::string_view architecture, std::string_view cudnn_version,
                           RowClass rows) {
  struct Entry {
    FormVerdict verdict = FormVerdict::kUnknown;
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
      Entry& entry = entries[{direction, row.at("form").get<std::string>()}];
      entry.verdict = worse(entry.verdict, parse_verdict(row.at("verdict").get<std::string>()));
      if (row.at("ms").is_number()) entry.milliseconds = std::max(entry.milliseconds, row.at("ms").get<double>());
    }
  } catch (const nlohmann::json::exception& error) {
    fail_argument("expected a table of the form explorer (an object with 'results'), found something else: ",
                  error.what(), "; make it anew with scoremod_explore");
  }
  auto parsed = std::make_shared<Parsed>();
  for (const auto& [key, entry] : entries) {
    const auto name = static_cast<std::uint32_t>(parsed->names.size());
    parsed->decisions.push_back({name, rows, key.first, entry.verdict, entry.milliseconds});
    parsed->names += key.second;
    parsed->names += '\0';
  }
  FormTable table(parsed->decisions, parsed->names.c_str(), rows,
                  {std::string(architecture), std::string(cudnn_version)}, true);
  table.parsed_ = std::move(parsed);
  return table;
}

FormTable::FormTable(std::span<const FormDecision> decisions, const char* names, RowClass rows, FormOrigin origin,
                     bool verified)
    : names_(names), origin_(std::move(origin)), verified_(verified) {
  const auto of_rows = std::ranges::equal_range(decisions, rows, {}, &FormDecision::rows);
  decisions_ = {of_rows.begin(), of_rows.end()};
}

const FormDecision* FormTable::decision(std::string_view form, Direction direction) const {
  const auto place = [&](const FormDecision& each) { return std::pair(each.direction, name(each)); };
  const std::pair wanted(direction, form);
  const auto found = std::ranges::lower_bound(decisions_, wanted, {}, place);
  return found == decisions_.end() || place(*found) != wanted ? nullptr : &*found;
}

FormVerdict FormTable::find(std::string_view form, Direction direction) const {
  const FormDecision* found = decision(form, direction);
  return found == nullptr ? FormVerdict::kUnknown : found->verdict;
}

double FormTable::milliseconds(std::string_view form, Direction direction) const {
  const FormDecision* found = decision(form, direction);
  return found == nullptr ? 0 : found->milliseconds;
}

std::string FormTable::seen_on() const { return concat(origin_.architecture, " with cuDNN ", origin_.cudnn_version); }

FormTable shipped_form_table(std::string_view architecture, std::string_view cudnn_version, RowClass rows) {
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
