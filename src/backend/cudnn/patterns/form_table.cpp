#include "backend/cudnn/patterns/form_table.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <tuple>

#include <nlohmann/json.hpp>

#include "base/fail.hpp"

namespace scoremod::embedded {
// What was explored on sm_90, a file for each version of cuDNN.
extern const std::string_view kCudnnForms919, kCudnnForms927;
}  // namespace scoremod::embedded

namespace scoremod::backend::cudnn {
namespace {

constexpr std::string_view kOneRowSettings = "one_row";

/// Whose forms are tried where nothing was seen: cuDNN's checks of a modifier's nodes are much the same for all.
constexpr const char* kModelArchitecture = "sm_90";

/// Better verdicts first: of several rows the last in this order counts.
constexpr std::array kByWeight{FormVerdict::kUnknown, FormVerdict::kRefused, FormVerdict::kRight, FormVerdict::kWrong,
                               FormVerdict::kCrashed};

/// Empty for a version that was not explored.
std::string_view shipped_json(std::string_view cudnn_version) {
  if (cudnn_version == "9.19.0") return embedded::kCudnnForms919;
  if (cudnn_version == "9.27.0") return embedded::kCudnnForms927;
  return {};
}

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
  FormTable table;
  try {
    const auto document = nlohmann::json::parse(json);
    for (const auto& row : document.at("results")) {
      if (row.at("architecture") != architecture || row.at("cudnn") != cudnn_version) continue;
      const bool one_row = row.at("setting").get<std::string>().starts_with(kOneRowSettings);
      if (one_row != (rows == RowClass::kOneRow)) continue;
      const auto direction = row.at("direction") == "backward" ? Direction::kBackward : Direction::kForward;
      Entry& entry = table.entries_[{row.at("form").get<std::string>(), direction}];
      entry.verdict = worse(entry.verdict, parse_verdict(row.at("verdict").get<std::string>()));
      if (row.at("ms").is_number()) entry.milliseconds = std::max(entry.milliseconds, row.at("ms").get<double>());
    }
  } catch (const nlohmann::json::exception& error) {
    fail_argument("expected a table of the form explorer (an object with 'results'), found something else: ",
                  error.what(), "; make it anew with scoremod_explore");
  }
  return table;
}

FormVerdict FormTable::find(std::string_view form, Direction direction) const {
  const auto found = entries_.find({std::string(form), direction});
  return found == entries_.end() ? FormVerdict::kUnknown : found->second.verdict;
}

double FormTable::milliseconds(std::string_view form, Direction direction) const {
  const auto found = entries_.find({std::string(form), direction});
  return found == entries_.end() ? 0 : found->second.milliseconds;
}

FormTable shipped_form_table(std::string_view architecture, std::string_view cudnn_version, RowClass rows) {
  // Reading the megabytes of JSON takes longer than anything else that an answer about support needs.
  static std::mutex mutex;
  static std::map<std::tuple<std::string, std::string, RowClass>, FormTable> tables;
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = tables.try_emplace({std::string(architecture), std::string(cudnn_version), rows});
  FormTable& table = entry->second;
  const std::string_view json = shipped_json(cudnn_version);
  if (!is_new || json.empty()) return table;
  table = FormTable::parse(json, architecture, cudnn_version, rows);
  if (table.size() > 0) return table;
  table = FormTable::parse(json, kModelArchitecture, cudnn_version, rows);
  table.set_verified(false);
  return table;
}

}  // namespace scoremod::backend::cudnn
