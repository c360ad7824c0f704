#include "scoremod/check_suite.hpp"

#include <algorithm>
#include <random>

#include "check/suite_cases.hpp"
#include "check/suite_run.hpp"

namespace scoremod {

const char* to_string(SuiteVerdict verdict) {
  switch (verdict) {
    case SuiteVerdict::kRight: return "right";
    case SuiteVerdict::kWrong: return "wrong";
    case SuiteVerdict::kRefused: return "refused";
    case SuiteVerdict::kError: return "error";
  }
  return "unknown";
}

const char* to_string(SuiteDirection direction) {
  return direction == SuiteDirection::kForward ? "forward" : "backward";
}

std::optional<double> SuiteOutput::relative_error() const {
  if (!check.l2.is_above_rounding()) return std::nullopt;
  return check.l2.error / check.l2.scale;
}

std::optional<double> SuiteOutput::ratio_to_plain_attention() const {
  const std::optional<double> error = relative_error();
  if (!error || !plain_attention_error || !(*plain_attention_error > 0)) return std::nullopt;
  return *error / *plain_attention_error;
}

bool SuiteOutput::is_near_plain_attention() const {
  const std::optional<double> error = relative_error();
  if (!error || !plain_attention_error) return true;
  return *error <= 2 * *plain_attention_error + check.l2.band / check.l2.scale;
}

const SuiteOutput* SuiteResult::worst() const {
  const auto found =
      std::ranges::max_element(outputs, {}, [](const SuiteOutput& output) { return output.check.badness(); });
  return found == outputs.end() ? nullptr : &*found;
}

std::size_t SuiteReport::count(SuiteVerdict verdict) const {
  return static_cast<std::size_t>(std::count_if(results.begin(), results.end(),
                                                [&](const SuiteResult& result) { return result.verdict == verdict; }));
}

SuiteReport check_suite(const CheckSuiteOptions& options) {
  // An unknown backend is the caller's mistake, not a verdict on every problem.
  support({}, options.compile);
  CheckSuiteOptions seeded = options;
  // Short enough to be typed. Parts must share one, which suite_cases() asks for.
  if (!seeded.seed && seeded.parts <= 1) seeded.seed = std::random_device()() % 1000000000;
  return checking::run_suite(checking::suite_cases(seeded), seeded, check);
}

}  // namespace scoremod
