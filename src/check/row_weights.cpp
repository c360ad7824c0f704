#include "check/row_weights.hpp"

#include <algorithm>

#include "backend/reference/dense_tensor.hpp"
#include "backend/reference/sink_value.hpp"
#include "base/element.hpp"

namespace scoremod::checking {
namespace {

namespace reference = backend::reference;
using problem::TensorRole;

double smallest_weight_of(const AttentionProblem& problem) {
  const double rows = static_cast<double>(problem.batch * problem.heads_q) * static_cast<double>(problem.seq_q);
  return 2 * 0x1p-126 * std::sqrt(rows * static_cast<double>(problem.seq_kv));
}

}  // namespace

RowWeights::RowWeights(const compiler::CompiledProblem& compiled, const reference::InputTensors& inputs,
                       const backend::CallParameters& parameters, const ErrorSources& sources)
    : problem(compiled.problem),
      scale(parameters.scale),
      smallest_weight(smallest_weight_of(problem)),
      store(unit_roundoff(problem::product_dtype(problem))),
      q(reference::load_dense<double>(problem, TensorRole::kQ, inputs.q, inputs.operands)),
      k(reference::load_dense<double>(problem, TensorRole::kK, inputs.k, inputs.operands)),
      v(reference::load_dense<double>(problem, TensorRole::kV, inputs.v, inputs.operands)),
      operands(reference::view_operands(problem, inputs.operands)),
      program_(problem.program, operands, parameters.offsets),
      dropout_(problem, parameters.dropout_seed, parameters.dropout_offset, parameters.offsets, inputs.operands),
      function_error_(sources.function_error),
      rounding_(sources.forward),
      largest_read_lse_(sources.backward_reads_lse ? std::numeric_limits<double>::infinity() : backend::kMaxReadLse),
      program_error_(problem.program),
      function_program_error_(problem.program, function_error_),
      keys_(static_cast<std::size_t>(problem.seq_kv)),
      o_sums_(static_cast<std::size_t>(problem.dim_v)),
      o_(o_sums_.size()),
      o_move_(o_.size()),
      o_magnitude_(o_.size()),
      o_lost_(o_.size()) {}

void RowWeights::weigh(std::int64_t b, std::int64_t h, std::int64_t i) {
  const double lse = weigh_keys(b, h, i);
  double squares = 0, common = 0;
  for (const Key& key : keys_) {
    if (!key.possible) continue;
    squares += square(key.weight * key.value_move);
    common += key.weight * key.function_move;
  }
  moves_.weight = std::sqrt(squares) + common;
  const double own_functions = function_error_ * (1 + std::max(1.0, log_sum_));
  moves_.lse = moves_.weight + own_functions + kWeight * (1 + std::min(std::abs(lse), largest_read_lse_));
  lse_move_ = moves_.weight + own_functions + kWeight * (1 + std::abs(lse));
  is_empty_ = std::none_of(keys_.begin(), keys_.end(), [](const Key& key) { return key.possible; });
  // Exponentials and logarithms of a sink alone are those of 0 and 1, which every approximation meets.
  if (is_empty_) lse_move_ = sink_weight_ > 0 && std::isfinite(lse) ? kWeight * (1 + std::abs(lse)) : 0;
  output_row(b, h);
}

void RowWeights::modify(const reference::Element& at, Key& key) {
  program_.evaluate(at, key.score);
  key.kept = program_.keeps();
  key.value = program_.value();
  key.possible = key.sure = key.kept;
  key.value_move = key.function_move = 0;
  if (key.kept) add_program_error(key);
  double largest = 0;
  for (const double side : {-1.0, 1.0}) {
    program_.evaluate(at, key.score + side * key.score_move);
    if (program_.keeps() != key.kept) {
      // The key itself is in doubt: its weight may be all wrong.
      if (!key.possible) key.value = program_.value();
      key.possible = true;
      key.sure = false;
      largest = std::max(largest, 1.0);
    } else if (key.kept) {
      const double move = std::abs(program_.value() - key.value);
      largest = std::isnan(move) ? move : std::max(largest, move);
    }
  }
  key.value_move += largest;
}

void RowWeights::add_program_error(Key& key) {
  const NodeId root = problem.program.value();
  program_error_.analyze(program_);
  key.value_move = program_error_.at(root);
  if (function_error_ == 0) return;
  function_program_error_.analyze(program_);
  key.function_move = function_program_error_.at(root) - key.value_move;
  key.value_move += key.function_move;
}

double RowWeights::weigh_keys(std::int64_t b, std::int64_t h, std::int64_t i) {
  const double* q_row = q.data() + query_row(b, h, i) * problem.dim_qk;
  double maximum = -std::numeric_limits<double>::infinity();
  for (std::int64_t j = 0; j < problem.seq_kv; ++j) {
    Key& key = keys_[static_cast<std::size_t>(j)];
    const double* k_row = k.data() + key_row(b, h, j) * problem.dim_qk;
    double sum = 0, magnitude = 0;
    for (std::int64_t d = 0; d < problem.dim_qk; ++d) {
      sum += q_row[d] * k_row[d];
      magnitude += std::abs(q_row[d] * k_row[d]);
    }
    key.score = scale * sum;
    key.score_move = unless_overflow(std::max(1.0, std::abs(scale)) * magnitude,
                                     std::max(kFloatRoundoff, rounding_.scores) * std::abs(scale) * magnitude);
    modify({b, h, i, j}, key);
    if (problem.dropout > 0) {
      const bool stays = dropout_.keeps(b, h, i, j);
      key.share = stays ? dropout_.factor() : 0;
    }
    if (key.kept && !(key.value <= maximum)) maximum = key.value;
  }
  max_logit_move_ = move_of_largest(maximum);
  const auto sink = reference::sink_value<double>(problem, operands, h);
  if (reference::takes_all(sink)) return leave_to_sink(*sink);
  if (sink && !(*sink <= maximum)) maximum = std::isnan(maximum) ? maximum : *sink;
  double sum = sink ? std::exp(*sink - maximum) : 0;
  for (const Key& key : keys_) sum += key.kept ? std::exp(key.value - maximum) : 0;
  log_sum_ = std::log(sum);
  const double lse = maximum + log_sum_;
  for (Key& key : keys_) {
    if (!key.possible) continue;
    const bool from_maximum = std::isfinite(largest_read_lse_);
    key.value_move += kOperations * std::abs(from_maximum ? key.value - lse : key.value);
  }
  for (Key& key : keys_) {
    key.weight = key.kept ? std::exp(key.value - lse) : key.possible ? std::min(1.0, std::exp(key.value - lse)) : 0;
  }
  sink_weight_ = sink ? std::exp(*sink - lse) : 0;
  sink_distance_ = sink ? std::abs(*sink - lse) : 0;
  return lse;
}

double RowWeights::leave_to_sink(double sink) {
  for (Key& key : keys_) {
    key.kept = key.possible = key.sure = false;
    key.weight = 0;
  }
  log_sum_ = sink_distance_ = 0;
  sink_weight_ = 1;
  return sink;
}

double RowWeights::move_of_largest(double maximum) const {
  double lowest = -std::numeric_limits<double>::infinity(), highest = maximum;
  for (const Key& key : keys_) {
    if (key.possible) highest = std::max(highest, key.value + key.value_move);
    if (key.sure) lowest = std::max(lowest, key.value - key.value_move);
  }
  return std::max(highest - maximum, maximum - lowest) + kWeight * (1 + std::abs(maximum));
}

double RowWeights::move_in_output(const Key& key, double lost) const {
  const double rounded = std::max(key.weight * std::max(store, rounding_.weights), std::min(key.weight, lost));
  return key.weight * (key.value_move + kWeight) + rounded + smallest_weight;
}

void RowWeights::output_row(std::int64_t b, std::int64_t h) {
  std::ranges::fill(o_sums_, RoundedSum());
  std::ranges::fill(o_move_, 0);
  std::ranges::fill(o_magnitude_, 0);
  std::ranges::fill(o_lost_, 0);
  double largest = 0;
  for (const Key& key : keys_) largest = std::max(largest, key.possible ? key.weight : 0);
  const double lost = rounding_.lost_weights * largest;
  for (std::int64_t j = 0; j < problem.seq_kv; ++j) {
    const Key& key = keys_[static_cast<std::size_t>(j)];
    if (!key.possible) continue;
    const double* v_row = v.data() + key_row(b, h, j) * problem.dim_v;
    const double move = key.share * move_in_output(key, lost);
    if (key.share == 0) continue;
    for (std::size_t d = 0; d < o_.size(); ++d) {
      if (key.kept) o_sums_[d].add(key.share * key.weight * v_row[d]);
      o_move_[d] += square(move * v_row[d]);
      o_magnitude_[d] += key.share * key.weight * std::abs(v_row[d]);
      if (key.weight < lost) o_lost_[d] += key.share * key.weight * v_row[d];
    }
  }
  // Weights may be divided by their sum only in the end.
  for (std::size_t d = 0; d < o_.size(); ++d) {
    o_[d] = o_sums_[d].value;
    const double move =
        std::sqrt(o_move_[d] + o_sums_[d].square_move) + moves_.weight * std::abs(o_[d]) + std::abs(o_lost_[d]);
    o_move_[d] = unless_overflow(o_magnitude_[d] * std::exp(log_sum_), move);
  }
}

}  // namespace scoremod::checking
