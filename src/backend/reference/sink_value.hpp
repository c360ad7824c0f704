#pragma once

#include <limits>
#include <optional>
#include <vector>

#include "backend/reference/interpreter.hpp"
#include "base/element.hpp"
#include "problem/implied_operands.hpp"

namespace scoremod::backend::reference {

/// The sink's term in the sums of a head's rows: empty without a sink, and if it is -inf, whose term is zero.
template <class Real>
std::optional<Real> sink_value(const AttentionProblem& problem, const std::vector<OperandView>& operands,
                               std::int64_t head) {
  if (problem.sink == Sink::kNone) return std::nullopt;
  if (problem.sink == Sink::kOffByOne) return Real(0);
  const OperandView& sink = operands[*problem::sink_operand(problem)];
  const auto value = load_element<Real>(sink.data, sink.dtype, sink.offset(head));
  if (value == -std::numeric_limits<Real>::infinity()) return std::nullopt;
  return value;
}

/// Whether a sink leaves no weight to its rows' keys, whatever these are: exp(score - inf) is 0.
template <class Real>
bool takes_all(const std::optional<Real>& sink) {
  return sink == std::numeric_limits<Real>::infinity();
}

}  // namespace scoremod::backend::reference
