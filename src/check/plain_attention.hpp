#pragma once

#include <utility>

#include "scoremod/check.hpp"

namespace scoremod::checking {

/// The problem without its modifier, and the options to check it with. q, k, v and d_o are the same, and the scale
/// gives the scores the deviation (see score_deviation.hpp) of the modified ones. It is the problem's own if that
/// deviation is not finite. options.inputs must be set.
std::pair<AttentionProblem, CheckOptions> plain_attention(const AttentionProblem& problem, const CheckOptions& options);

}  // namespace scoremod::checking
