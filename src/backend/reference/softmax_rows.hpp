#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "backend/reference/dense_tensor.hpp"
#include "backend/reference/interpreter.hpp"
#include "backend/reference/naive_attention.hpp"
#include "backend/reference/sink_value.hpp"
#include "base/element.hpp"
#include "problem/call_dropout.hpp"

namespace scoremod::backend::reference {

using problem::TensorRole;

/// The plain evaluation rounds to the dtype here; the oracle rounds nothing.
template <class Real>
Real as_stored(Real x, DType dtype) {
  if constexpr (std::is_same_v<Real, float>) return round_to(dtype, x);
  return x;
}

/// The plain evaluation rounds tensors other than FP8 q, k and v to bf16, in the unit of the tensor that they are
/// multiplied with.
template <class Real>
Real as_multiplied(const AttentionProblem& problem, Real unit, Real x) {
  if constexpr (std::is_same_v<Real, float>) {
    if (is_float8(problem.dtype)) return round_to(problem::product_dtype(problem), x * unit) / unit;
  }
  return x;
}

/// The plain evaluation sums in index order. The oracle's order doesn't matter, and sums that don't wait for each other
/// take a fraction of the time.
template <class Real>
Real dot(const Real* x, const Real* y, std::int64_t size) {
  constexpr std::int64_t kSums = std::is_same_v<Real, float> ? 1 : 8;
  std::array<Real, kSums> sums{};
  std::int64_t d = 0;
  for (; d + kSums <= size; d += kSums) {
    for (std::int64_t i = 0; i < kSums; ++i) sums[static_cast<std::size_t>(i)] += x[d + i] * y[d + i];
  }
  for (; d < size; ++d) sums[0] += x[d] * y[d];
  return std::accumulate(sums.begin(), sums.end(), Real(0));
}

/// dot(x, y), for the plain evaluation of a sum that is subtracted from another of the same terms. It adds in the other
/// order, because equal roundings would cancel if one key has all the weight. Real implementations don't cancel them:
/// one sum comes from an MMA and the other row by row.
template <class Real>
Real dot_backwards(const Real* x, const Real* y, std::int64_t size) {
  if constexpr (!std::is_same_v<Real, float>) return dot(x, y, size);
  Real sum = 0;
  for (std::int64_t d = size; d-- > 0;) sum += x[d] * y[d];
  return sum;
}

/// The sum of the magnitudes that dot(x, y) adds; in double, as it is a size and not a result.
template <class Real>
double magnitudes(const Real* x, const Real* y, std::int64_t size) {
  double sum = 0;
  for (std::int64_t d = 0; d < size; ++d) sum += std::abs(static_cast<double>(x[d]) * static_cast<double>(y[d]));
  return sum;
}

template <class Real>
void add_scaled(Real* sum, Real factor, const Real* x, std::int64_t size) {
  for (std::int64_t d = 0; d < size; ++d) sum[d] += factor * x[d];
}

/// One query's scores and softmax.
template <class Real>
struct Row {
  std::vector<Real> score;
  std::vector<Real> weight;  ///< softmax of the modified scores
  std::vector<bool> kept;
  Real lse = 0;
  Real sink_weight = 0;  ///< of the sink, beside the keys'
  Real max_logit = 0;    ///< of the kept keys' modified scores
  /// The dropout factor of each weight in the output: 0, or the factor that makes up for dropped ones.
  std::vector<Real> share;
};

/// Everything that both directions share.
template <class Real>
class SoftmaxRows {
 public:
  SoftmaxRows(const compiler::CompiledProblem& compiled, const InputTensors& inputs, const CallParameters& parameters,
              const Moves& moves)
      : problem(compiled.problem),
        scale(static_cast<Real>(parameters.scale)),
        q(load_dense<Real>(problem, TensorRole::kQ, inputs.q, inputs.operands)),
        k(load_dense<Real>(problem, TensorRole::kK, inputs.k, inputs.operands)),
        v(load_dense<Real>(problem, TensorRole::kV, inputs.v, inputs.operands)),
        operands(view_operands(problem, inputs.operands)),
        scale_o(static_cast<Real>(problem::StoredUnit(problem, TensorRole::kO).scale(inputs.operands))),
        unit_q(unit_of(TensorRole::kQ, inputs)),
        unit_k(unit_of(TensorRole::kK, inputs)),
        unit_v(unit_of(TensorRole::kV, inputs)),
        // The user's own program: the passes' result is not trusted here.
        program_(problem.program, operands, parameters.offsets),
        dropout_(problem, parameters.dropout_seed, parameters.dropout_offset, parameters.offsets, inputs.operands),
        moves_(moves) {
    program_.move_functions(moves.function);
    const auto keys = static_cast<std::size_t>(problem.seq_kv);
    row_.score.resize(keys);
    row_.weight.resize(keys);
    row_.kept.resize(keys);
    row_.share.assign(keys, Real(1));
  }

  const Real* q_row(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return q.data() + ((b * problem.heads_q + h) * problem.seq_q + i) * problem.dim_qk;
  }
  /// Number of a KV row for this query head; times the head dim it is the row's start.
  std::int64_t key_row(std::int64_t b, std::int64_t h, std::int64_t j) const {
    const std::int64_t group = problem.heads_q / problem.heads_kv;
    return (b * problem.heads_kv + h / group) * problem.seq_kv + j;
  }
  const Real* k_row(std::int64_t b, std::int64_t h, std::int64_t j) const {
    return k.data() + key_row(b, h, j) * problem.dim_qk;
  }
  const Real* v_row(std::int64_t b, std::int64_t h, std::int64_t j) const {
    return v.data() + key_row(b, h, j) * problem.dim_v;
  }

  /// The softmax of one row; valid until the next call.
  const Row<Real>& row(std::int64_t b, std::int64_t h, std::int64_t i) {
    Real maximum = row_.max_logit = modify_scores(b, h, i);
    if (problem.dropout > 0) draw_shares(b, h, i);
    const auto sink = sink_value<Real>(problem, operands, h);
    if (takes_all(sink)) return row_without_keys(*sink);
    if (sink && !(*sink <= maximum)) maximum = std::isnan(maximum) ? maximum : *sink;
    Real sum = sink ? std::exp(*sink - maximum) : Real(0);
    row_.sink_weight = sum;
    for (std::size_t j = 0; j < row_.weight.size(); ++j) {
      row_.weight[j] = row_.kept[j] ? std::exp(row_.weight[j] - maximum) : Real(0);
      if (row_.kept[j]) sum += row_.weight[j];
    }
    row_.lse = any_kept_ || sink ? maximum + std::log(sum) : -std::numeric_limits<Real>::infinity();
    if (moves_.function != 0 && std::isfinite(row_.lse)) {
      const double logarithm = std::log(static_cast<double>(sum));
      row_.lse += static_cast<Real>(moves_.function * (1 + std::max(1.0, std::abs(logarithm))));
    }
    if (sink) row_.sink_weight = flushed(row_.sink_weight / sum);
    for (std::size_t j = 0; j < row_.weight.size(); ++j) {
      if (row_.kept[j]) row_.weight[j] = flushed(row_.weight[j] / sum);
    }
    return row_;
  }

  /// The weights of the row that row() gave last, for another LSE than its own: that of more keys than the problem's.
  void normalize_by(std::int64_t h, float lse) {
    if (is_rounded(row_.lse, lse)) return;
    const Real factor = std::exp(row_.lse - static_cast<Real>(lse));
    for (std::size_t j = 0; j < row_.weight.size(); ++j) {
      if (row_.kept[j]) row_.weight[j] *= factor;
    }
    if (const auto sink = sink_value<Real>(problem, operands, h)) {
      row_.sink_weight = std::exp(*sink - static_cast<Real>(lse));
    }
    row_.lse = static_cast<Real>(lse);
  }

  /// The row's output.
  void output(std::int64_t b, std::int64_t h, const Row<Real>& row, Real* o) const {
    Real largest = 0;
    for (const Real weight : row.weight) largest = std::max(largest, weight);
    // A NaN among the terms of the sum is in all of the row, whatever goes into the output.
    for (std::int64_t d = 0; d < problem.dim_v; ++d) o[d] = std::isnan(row.lse) ? row.lse : Real(0);
    for (std::int64_t j = 0; j < problem.seq_kv; ++j) {
      const auto at = static_cast<std::size_t>(j);
      if (!row.kept[at] || row.share[at] == 0) continue;
      add_scaled(o, as_stored(rounded(row.weight[at], largest) * row.share[at], problem::product_dtype(problem)),
                 v_row(b, h, j), problem.dim_v);
    }
  }

  /// An element of the output as the forward leaves it in memory.
  Real stored(Real o) const {
    const DType dtype = problem::dtype_of(problem, TensorRole::kO);
    return as_stored(saturate(dtype, o * scale_o), dtype);
  }
  /// The o that a backward reads from there.
  Real taken(Real o) const {
    if constexpr (std::is_same_v<Real, float>) return as_multiplied(problem, 1 / unit_v, stored(o) / scale_o);
    return o;
  }

  const AttentionProblem& problem;
  const Real scale;
  const std::vector<Real> q, k, v;
  const std::vector<OperandView> operands;
  const Real scale_o, unit_q, unit_k, unit_v;

 private:
  /// A weight, which is 0 below the smallest.
  Real flushed(Real weight) const { return weight < static_cast<Real>(moves_.smallest_weight) ? Real(0) : weight; }

  /// For a backward alone, whose heads share it.
  Real unit_of(TensorRole role, const InputTensors& inputs) const {
    return static_cast<Real>(problem::StoredUnit(problem, role).of(inputs.operands, 0));
  }

  const Row<Real>& row_without_keys(Real lse) {
    std::ranges::fill(row_.weight, Real(0));
    row_.kept.assign(row_.kept.size(), false);
    row_.lse = lse;
    row_.sink_weight = 1;
    return row_;
  }

  /// Whether `stored` is the float32 rounding of an LSE, which may be too far from it for weights.
  static bool is_rounded(Real lse, float stored) {
    const auto exact = static_cast<double>(lse), kept = static_cast<double>(stored);
    if (!std::isfinite(kept) || !std::isfinite(exact)) return true;
    return std::abs(exact - kept) <= std::abs(kept) * std::numeric_limits<float>::epsilon();
  }

  /// Fills score, kept and (for now) the modified scores in weight; returns the largest modified score, NaN if there is
  /// one.
  Real modify_scores(std::int64_t b, std::int64_t h, std::int64_t i) {
    Real maximum = -std::numeric_limits<Real>::infinity();
    any_kept_ = false;
    for (std::int64_t j = 0; j < problem.seq_kv; ++j) {
      const auto at = static_cast<std::size_t>(j);
      row_.score[at] = scale * dot(q_row(b, h, i), k_row(b, h, j), problem.dim_qk);
      if (moves_.score != 0) row_.score[at] += score_move(b, h, i, j);
      program_.evaluate({b, h, i, j}, row_.score[at]);
      row_.kept[at] = program_.keeps();
      row_.weight[at] = program_.value();
      if (!row_.kept[at]) continue;
      any_kept_ = true;
      if (std::isnan(program_.value()) || program_.value() > maximum) maximum = program_.value();
    }
    return maximum;
  }

  /// A weight with the rounding of Moves::forward, in a row with this largest one.
  Real rounded(Real weight, Real largest) const {
    const auto& [scores, unit, lost] = moves_.forward;
    if (unit == 0 || !(weight > 0) || !std::isfinite(largest)) return weight;
    const double part = static_cast<double>(weight) / static_cast<double>(largest);
    const double step = 2 * std::max(unit * std::exp2(std::floor(std::log2(part))), lost);
    return static_cast<Real>(std::nearbyint(part / step) * step) * largest;
  }

  /// The quantity that Moves::score is relative to.
  Real score_move(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    const double terms = magnitudes(q_row(b, h, i), k_row(b, h, j), problem.dim_qk);
    return static_cast<Real>(moves_.score * std::abs(static_cast<double>(scale)) * terms);
  }

  void draw_shares(std::int64_t b, std::int64_t h, std::int64_t i) {
    for (std::int64_t j = 0; j < problem.seq_kv; ++j) {
      const bool stays = dropout_.keeps(b, h, i, j);
      row_.share[static_cast<std::size_t>(j)] = stays ? static_cast<Real>(dropout_.factor()) : Real(0);
    }
  }

  Interpreter<Real> program_;
  const problem::CallDropout dropout_;
  const Moves moves_;
  Row<Real> row_;
  bool any_kept_ = false;
};

}  // namespace scoremod::backend::reference
