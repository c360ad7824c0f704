#include "predictions.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "scoremod/error.hpp"

#include "text_file.hpp"

namespace scoremod::bench {
namespace {

/// By the case's name and direction.
std::map<std::string, double> read_predictions(const std::string& path) {
  std::map<std::string, double> milliseconds;
  try {
    const auto json = nlohmann::json::parse(input::read_text(path, "predicted times"));
    for (const auto& row : json.at("results")) {
      const std::string name = row.at("case").get<std::string>() + " " + row.at("direction").get<std::string>();
      milliseconds[name] = row.at("predicted_ms").get<double>();
    }
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::kInvalidArgument, path + ": expected predicted times as bench/results/prediction.json has " +
                                                 "them, found something else: " + error.what());
  }
  return milliseconds;
}

}  // namespace

std::string compare_predictions(const measure::BenchmarkResult& result, const std::string& path) {
  const std::map<std::string, double> predictions = read_predictions(path);
  std::vector<std::pair<double, std::string>> errors;
  for (const measure::Measurement& one : result.results) {
    const std::string name = one.bench_case.name + " " + to_string(one.bench_case.direction);
    const auto found = predictions.find(name);
    if (!one.error.empty() || found == predictions.end()) continue;
    errors.emplace_back(std::max(found->second / one.ms, one.ms / found->second) - 1, name);
  }
  if (errors.empty()) return "no case has a predicted time\n";
  std::ranges::sort(errors);
  std::array<char, 256> text{};
  std::snprintf(text.data(), text.size(), "predicted times, %zu: median error %.1f %%, worst %.1f %% (%s)\n",
                errors.size(), 100 * errors[errors.size() / 2].first, 100 * errors.back().first,
                errors.back().second.c_str());
  return text.data();
}

}  // namespace scoremod::bench
