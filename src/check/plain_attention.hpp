#pragma once

#include <utility>

#include "scoremod/check.hpp"

namespace scoremod::checking {

/// The problem without its modifier, and the options to check it with: the same q, k, v and d_o, and a scale that gives
/// the scores the deviation (see score_deviation.hpp) of the modified ones; the problem's own where that deviation is
/// not finite. options.inputs must be set.
std::pair<AttentionProblem, CheckOptions> plain_attention(const AttentionProblem& problem, const CheckOptions& options);

}  // namespace scoremod::checking
