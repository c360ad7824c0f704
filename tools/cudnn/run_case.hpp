#pragma once

#include <string>
#include <vector>

#include "backend/backend.hpp"
#include "backend/cudnn/lowering/lower.hpp"
#include "tools/cudnn/pattern_case.hpp"
#include "verification/output_error.hpp"

namespace scoremod::explorer {

using verification::OutputError;

struct CaseResult {
  std::string verdict;  ///< right, wrong, refused; a crash is seen by the parent only
  std::string text;     ///< why refused, in cuDNN's words
  std::vector<OutputError> outputs;
  double build_ms = 0;
  int nodes = 0;                  ///< of the lowered graph
  std::vector<std::string> uses;  ///< the patterns in the lowered graph
};

/// Lowers the case's program into allowed patterns (`allowed`), applies the mutation, builds and runs on the current
/// device with NaN-filled outputs. The float64 reference judges them. Each output's tolerance is twice the error of a
/// plain evaluation in the same precision, plus half a unit in the last place of the dtype.
CaseResult run_case(const PatternCase& pattern, const Setting& setting, backend::Direction direction,
                    const backend::cudnn::PatternFilter& allowed);

/// The modifier that time_case() times; nothing where the case has no lowering. Needs no device.
std::optional<backend::cudnn::ModifierGraph> timed_modifier(const PatternCase& pattern, backend::Direction direction,
                                                            const backend::cudnn::PatternFilter& allowed);

/// Median device milliseconds of the case at batch 4, heads 16, sequence 4096, head dim 128, bf16 BSHD. 0 if it can't
/// be built or an operand is too large. Only meaningful when nothing else runs on the device.
double time_case(const PatternCase& pattern, backend::Direction direction,
                 const backend::cudnn::PatternFilter& allowed);

}  // namespace scoremod::explorer
