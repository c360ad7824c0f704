#include "check/row_sample.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "backend/reference/sink_value.hpp"
#include "backend/reference/strip_evaluator.hpp"
#include "problem/implied_operands.hpp"
#include "problem/random_operands.hpp"

namespace scoremod::checking {
namespace {

namespace reference = backend::reference;

/// The deviation that random_inputs() gives scaled scores.
constexpr double kScoreDeviation = 4;
/// More than rounding to bfloat16 moves weights.
constexpr double kToldApart = 0.01;

/// One row's weights at scores of its own drawing.
class SampledRow {
 public:
  SampledRow(const AttentionProblem& problem, const std::vector<reference::OperandView>& operands,
             const IndexOffsets& offsets)
      : problem_(problem),
        operands_(operands),
        program_(problem.program, operands, offsets, problem.seq_kv),
        keys_(static_cast<std::size_t>(problem.seq_kv)),
        scores_(keys_),
        kept_(keys_),
        weights_(keys_) {}

  void place(std::int64_t b, std::int64_t h, std::int64_t i) {
    sink_ = reference::sink_value<double>(problem_, operands_, h);
    program_.begin_head(b, h);
    program_.begin_query(i);
  }

  void weigh(std::mt19937_64& random) {
    const auto unit = [&random] { return static_cast<double>(random() >> 11) * 0x1p-53; };
    // The sum of two uniforms has variance 1/6.
    for (double& score : scores_) score = (unit() + unit() - 1) * kScoreDeviation * std::sqrt(6.0);
    for (std::size_t first = 0; first < keys_; first += reference::StripEvaluator::kMaxKeys) {
      const std::size_t count = std::min(keys_ - first, reference::StripEvaluator::kMaxKeys);
      program_.evaluate(static_cast<std::int64_t>(first), count, scores_.data() + first);
      program_.write_kept(kept_.data() + first);
      const reference::Lanes value = program_.at(problem_.program.value());
      for (std::size_t lane = 0; lane < count; ++lane) weights_[first + lane] = value.f[lane * value.step];
    }
    normalize();
  }

  std::size_t kept() const { return static_cast<std::size_t>(std::count(kept_.begin(), kept_.end(), 1)); }
  const std::vector<double>& weights() const { return weights_; }

 private:
  /// Turns values into weights; masked elements have none.
  void normalize() {
    double largest = sink_.value_or(-std::numeric_limits<double>::infinity());
    for (std::size_t j = 0; j < keys_; ++j) {
      if (kept_[j] != 0) largest = std::max(largest, weights_[j]);
    }
    if (reference::takes_all(sink_)) {
      std::ranges::fill(weights_, 0);
      return;
    }
    double sum = sink_ ? std::exp(*sink_ - largest) : 0;
    for (std::size_t j = 0; j < keys_; ++j) {
      weights_[j] = kept_[j] != 0 ? std::exp(weights_[j] - largest) : 0;
      sum += weights_[j];
    }
    for (double& weight : weights_) weight = sum > 0 ? weight / sum : 0;
  }

  const AttentionProblem& problem_;
  const std::vector<reference::OperandView>& operands_;
  reference::StripEvaluator program_;
  std::size_t keys_;
  std::optional<double> sink_;
  std::vector<double> scores_;
  std::vector<std::uint8_t> kept_;
  std::vector<double> weights_;
};

double moved_weight(const std::vector<double>& before, const std::vector<double>& after) {
  double moved = 0;
  for (std::size_t j = 0; j < before.size(); ++j) moved += std::max(after[j] - before[j], 0.0);
  return moved;
}

}  // namespace

RowSample sample_rows(const CheckCase& one, int rows) {
  const AttentionProblem problem = problem::with_lengths_in_mask(problem::with_implied_operands(one.problem));
  const std::vector<OwnedOperand> owned = problem::random_operands(problem, {one.seed, one.fills});
  std::vector<const void*> data;
  for (const OwnedOperand& operand : owned) data.push_back(operand.bytes.data());
  const std::vector<reference::OperandView> operands = reference::view_operands(problem, data);
  SampledRow row(problem, operands, one.call.offsets);
  std::mt19937_64 random(one.seed);
  const auto below = [&random](std::int64_t count) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(count));
  };
  RowSample sample;
  for (; sample.rows < rows; ++sample.rows) {
    row.place(below(problem.batch), below(problem.heads_q), below(problem.seq_q));
    row.weigh(random);
    const std::size_t kept = row.kept();
    const std::vector<double> weights = row.weights();
    row.weigh(random);
    sample.empty += kept == 0 ? 1 : 0;
    sample.partly_kept += kept > 0 && kept < weights.size() ? 1 : 0;
    sample.told_by_score += moved_weight(weights, row.weights()) >= kToldApart ? 1 : 0;
  }
  return sample;
}

}  // namespace scoremod::checking
