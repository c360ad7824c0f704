#pragma once

#include <limits>
#include <optional>
#include <span>

#include "backend/cpu/attention_shape.hpp"
#include "backend/cpu/forward_worker.hpp"
#include "backend/cpu/strip.hpp"

namespace scoremod::backend::cpu {

/// The sink's term in the sums of a head's rows; empty without a sink, and if it is -inf.
std::optional<float> sink_of(const AttentionProblem& problem, std::span<const OperandView> operands, std::int64_t head);

/// Whether a sink leaves no weight to its rows' keys, whatever these are.
inline bool takes_all(float sink) { return sink == std::numeric_limits<float>::infinity(); }

/// Writes the gradient of a learned sink where it is wanted: for each head the sum over its rows of -p (o . d_o), where
/// p = exp(sink - lse) is the sink's weight. `terms` are those of the backward's call. One thread adds, in double: the
/// same bits each time.
void write_sink_gradient(const AttentionProblem& problem, const AttentionShape& shape,
                         std::span<const OperandView> operands, const BackwardTensors& tensors,
                         const RowTermArrays& terms);

}  // namespace scoremod::backend::cpu
