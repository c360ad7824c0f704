#include "backend/cudnn/predicted_time.hpp"

#include <algorithm>

#include "base/fail.hpp"

namespace scoremod::backend::cudnn {
namespace {

/// The pattern that the explorer gives attention without a modifier.
constexpr std::string_view kPlain = "plain";

/// The explorer's timed shape: batch 4, heads 16, sequence 4096, head dim 128.
constexpr double kMeasuredWork = 4.0 * 16 * 4096 * 4096 * (128 + 128);

/// What attention takes whatever its size: launches, and filling the machine.
constexpr double kLeastMilliseconds = 0.005;

}  // namespace

Prediction predicted_time(const compiler::CompiledProblem& problem, const PlanTask& task,
                          const LoweredModifier& modifier, const FormTable& table, const DeviceTarget& target) {
  const AttentionProblem& p = problem.problem;
  const double plain = table.milliseconds(kPlain, task.direction);
  double milliseconds = plain;
  bool all_known = plain > 0;
  for (const std::string& form : modifier.forms) {
    const double measured = table.milliseconds(form, task.direction);
    all_known = all_known && measured > 0;
    // A pattern that skips tiles takes less than attention without it.
    if (measured > 0) milliseconds += measured - plain;
  }
  milliseconds = std::max(milliseconds, 0.05 * plain);
  const double work = static_cast<double>(p.batch) * static_cast<double>(p.heads_q) * static_cast<double>(p.seq_q) *
                      static_cast<double>(p.seq_kv) * static_cast<double>(p.dim_qk + p.dim_v);
  std::string source =
      all_known ? "measured patterns, scaled by size" : "patterns of which some were not timed, scaled by size";
  if (!table.verified()) source += concat("; measured on another architecture than ", target.architecture);
  return {std::max(milliseconds * work / kMeasuredWork, kLeastMilliseconds), std::move(source)};
}

}  // namespace scoremod::backend::cudnn
