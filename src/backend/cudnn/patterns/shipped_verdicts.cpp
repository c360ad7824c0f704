#include "backend/cudnn/patterns/shipped_verdicts.hpp"

#include <map>
#include <string_view>

#include <nlohmann/json.hpp>

#include "verification/verdict.hpp"

namespace scoremod::embedded {
// The verdicts of verdicts/, made a constant of the library by CMake.
extern const std::string_view kCudnnVerdictsSm90;
}  // namespace scoremod::embedded

namespace scoremod::backend::cudnn {

std::optional<std::string> shipped_engine(const std::string& structural_key) {
  static const std::map<std::string, std::string> engines = [] {
    std::map<std::string, std::string> right;
    const auto json = nlohmann::json::parse(embedded::kCudnnVerdictsSm90);
    for (const auto& result : json.at("results")) {
      if (result.at("verdict") == verification::kRightVerdict) right[result.at("key")] = result.at("engine");
    }
    return right;
  }();
  const auto found = engines.find(structural_key);
  return found == engines.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace scoremod::backend::cudnn
