#pragma once

#include <cstdint>

#include "scoremod/work.hpp"

#include "compiler/compiled_problem.hpp"

namespace scoremod::compiler {

/// The number of pairs (q, kv) with q in [0, seq_q), kv in [0, seq_kv) and kv <= q + offset.
std::int64_t pairs_up_to(std::int64_t seq_q, std::int64_t seq_kv, std::int64_t offset);

/// The number of pairs in a band; all for no band.
std::int64_t pairs_in_band(const std::optional<masks::Band>& band, std::int64_t seq_q, std::int64_t seq_kv);

/// scoremod::estimate_work() of a problem that is compiled already.
WorkEstimate work_of(const CompiledProblem& compiled);

}  // namespace scoremod::compiler
