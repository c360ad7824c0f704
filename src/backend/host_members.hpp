#pragma once

#include "problem/problem_topics.hpp"

namespace scoremod::backend {

/// The backends of the host run every member of a problem. All are named, so that a new one does not compile until both
/// backends run it.
inline void runs_every_member(const AttentionProblem& problem) {
  static_assert(problem::kAllTopics<Sequences, TensorDTypes, TensorLayouts, SoftmaxOptions, OutputOptions,
                                    BackwardOptions, ScoreProgram>);
  [[maybe_unused]] const auto& [batch, heads_q, heads_kv, seq_q, seq_kv, dim_qk, dim_v, tokens_q, tokens_kv, paged,
                                lengths, index_offsets] = problem::topic<Sequences>(problem);
  [[maybe_unused]] const auto& [dtype, dtype_kv, dtype_o, dtype_d_o, dtype_gradients] =
      problem::topic<TensorDTypes>(problem);
  [[maybe_unused]] const auto& [q, k, v, o, d_o, dq, dk, dv] = problem::topic<TensorLayouts>(problem);
  [[maybe_unused]] const auto& [scale, sink, dropout, dropout_keys] = problem::topic<SoftmaxOptions>(problem);
  [[maybe_unused]] const auto& [stats, max_logit, amax_o] = problem::topic<OutputOptions>(problem);
  [[maybe_unused]] const auto& [backward, given_deltas, deterministic, amax_gradients] =
      problem::topic<BackwardOptions>(problem);
  [[maybe_unused]] const auto& [program, operands] = problem::topic<ScoreProgram>(problem);
}

}  // namespace scoremod::backend
