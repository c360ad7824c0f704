#include "check/rounding_band.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "backend/reference/dense_tensor.hpp"
#include "backend/reference/interpreter.hpp"

namespace scoremod::checking {
namespace {

namespace reference = backend::reference;
using backend::reference::Interpreter;
using problem::TensorRole;

constexpr double kFloatRoundoff = 0x1p-24;
constexpr double kArithmetic = 4 * kFloatRoundoff;

double square(double x) { return x * x; }

/// One key of a row: its softmax weight, or for a key that rounding may bring in the weight it would have, and its
/// moves.
struct Key {
  bool possible = false;  ///< kept, or kept after a move of the score
  bool kept = false;
  double score = 0, score_move = 0;
  double value = 0, value_move = 0;
  double weight = 0;
};

class Band {
 public:
  Band(const compiler::CompiledProblem& compiled, const reference::InputTensors& inputs,
       const backend::CallParameters& parameters)
      : problem_(compiled.problem),
        scale_(parameters.scale),
        store_(unit_roundoff(problem_.dtype)),
        q_(reference::load_dense<double>(problem_, TensorRole::kQ, inputs.q)),
        k_(reference::load_dense<double>(problem_, TensorRole::kK, inputs.k)),
        v_(reference::load_dense<double>(problem_, TensorRole::kV, inputs.v)),
        operands_(reference::view_operands(problem_, inputs.operands)),
        program_(problem_.program, operands_, parameters.offsets),
        keys_(static_cast<std::size_t>(problem_.seq_kv)),
        o_(static_cast<std::size_t>(problem_.dim_v)),
        o_move_(o_.size()) {
    if (inputs.d_o == nullptr || !compiled.derivative) return;
    d_o_ = reference::load_dense<double>(problem_, TensorRole::kO, inputs.d_o);
    derivative_program_ = *compiled.derivative;
    derivative_.emplace(derivative_program_, operands_, parameters.offsets);
    gradient_ = empty_gradient();
    squares_ = empty_gradient();
  }

  void add_row(std::int64_t b, std::int64_t h, std::int64_t i) {
    const double lse = weigh_keys(b, h, i);
    double shared = 0;  // the move that all weights of the row share through their sum
    for (const Key& key : keys_) shared += key.possible ? square(key.weight * key.value_move) : 0;
    shared = std::sqrt(shared);
    const bool empty = std::none_of(keys_.begin(), keys_.end(), [](const Key& key) { return key.possible; });
    band_.forward.lse.push_back(empty ? 0 : shared + kArithmetic * (1 + std::abs(lse)));
    output_row(b, h, shared);
    for (const double move : o_move_) band_.forward.o.push_back(empty ? 0 : move);
    if (derivative_ && !empty) gradient_row(b, h, i, shared);
  }

  RoundingBand take() {
    if (derivative_) {
      const auto finish = [](std::vector<double>& out, const std::vector<double>& squares,
                             const std::vector<double>& sums, double store) {
        for (std::size_t i = 0; i < squares.size(); ++i)
          out.push_back(std::sqrt(squares[i]) + store * std::abs(sums[i]));
      };
      finish(band_.backward.dq, squares_.dq, gradient_.dq, store_);
      finish(band_.backward.dk, squares_.dk, gradient_.dk, store_);
      finish(band_.backward.dv, squares_.dv, gradient_.dv, store_);
      for (std::size_t i = 0; i < operands_.size(); ++i) {
        const double store = is_floating(operands_[i].dtype) ? unit_roundoff(operands_[i].dtype) : 0;
        finish(band_.backward.d_operands.emplace_back(), squares_.d_operands[i], gradient_.d_operands[i], store);
      }
    }
    return std::move(band_);
  }

 private:
  reference::BackwardResult<double> empty_gradient() const {
    reference::BackwardResult<double> out{
        std::vector<double>(q_.size()), std::vector<double>(k_.size()), std::vector<double>(v_.size()), {}};
    for (const reference::OperandView& operand : operands_) {
      out.d_operands.emplace_back(is_floating(operand.dtype) ? static_cast<std::size_t>(operand.size()) : 0);
    }
    return out;
  }

  std::int64_t query_row(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return (b * problem_.heads_q + h) * problem_.seq_q + i;
  }
  std::int64_t key_row(std::int64_t b, std::int64_t h, std::int64_t j) const {
    return (b * problem_.heads_kv + h / (problem_.heads_q / problem_.heads_kv)) * problem_.seq_kv + j;
  }

  /// Evaluates the program at one key, at its score and to both sides of it.
  void modify(const reference::Element& at, Key& key) {
    program_.evaluate(at, key.score);
    key.kept = program_.keeps();
    key.value = program_.value();
    key.possible = key.kept;
    key.value_move = kArithmetic * std::abs(key.value);
    double largest = 0;
    for (const double side : {-1.0, 1.0}) {
      program_.evaluate(at, key.score + side * key.score_move);
      if (program_.keeps() != key.kept) {
        // The key itself is in doubt: its weight may be all wrong.
        if (!key.possible) key.value = program_.value();
        key.possible = true;
        largest = std::max(largest, 1.0);
      } else if (key.kept) {
        const double move = std::abs(program_.value() - key.value);
        largest = std::isnan(move) ? move : std::max(largest, move);
      }
    }
    key.value_move += largest;
  }

  /// Fills keys_; returns the row's LSE.
  double weigh_keys(std::int64_t b, std::int64_t h, std::int64_t i) {
    const double* q = q_.data() + query_row(b, h, i) * problem_.dim_qk;
    double maximum = -std::numeric_limits<double>::infinity();
    for (std::int64_t j = 0; j < problem_.seq_kv; ++j) {
      Key& key = keys_[static_cast<std::size_t>(j)];
      const double* k = k_.data() + key_row(b, h, j) * problem_.dim_qk;
      double sum = 0, magnitude = 0;
      for (std::int64_t d = 0; d < problem_.dim_qk; ++d) {
        sum += q[d] * k[d];
        magnitude += std::abs(q[d] * k[d]);
      }
      key.score = scale_ * sum;
      key.score_move = kFloatRoundoff * std::abs(scale_) * magnitude;
      modify({b, h, i, j}, key);
      if (key.kept && !(key.value <= maximum)) maximum = key.value;
    }
    double sum = 0;
    for (const Key& key : keys_) sum += key.kept ? std::exp(key.value - maximum) : 0;
    const double lse = maximum + std::log(sum);
    for (Key& key : keys_) {
      key.weight = key.kept ? std::exp(key.value - lse) : key.possible ? std::min(1.0, std::exp(key.value - lse)) : 0;
    }
    return lse;
  }

  double weight_move(const Key& key) const { return key.weight * (key.value_move + kArithmetic + store_); }

  void output_row(std::int64_t b, std::int64_t h, double shared) {
    std::fill(o_.begin(), o_.end(), 0);
    std::fill(o_move_.begin(), o_move_.end(), 0);
    for (std::int64_t j = 0; j < problem_.seq_kv; ++j) {
      const Key& key = keys_[static_cast<std::size_t>(j)];
      if (!key.possible) continue;
      const double* v = v_.data() + key_row(b, h, j) * problem_.dim_v;
      const double move = weight_move(key);
      for (std::size_t d = 0; d < o_.size(); ++d) {
        if (key.kept) o_[d] += key.weight * v[d];
        o_move_[d] += square(move * v[d]);
      }
    }
    for (std::size_t d = 0; d < o_.size(); ++d)
      o_move_[d] = std::sqrt(o_move_[d]) + (shared + store_) * std::abs(o_[d]);
  }

  void gradient_row(std::int64_t b, std::int64_t h, std::int64_t i, double shared) {
    const double* d_o = d_o_.data() + query_row(b, h, i) * problem_.dim_v;
    double delta = 0, delta_move = 0;
    for (std::size_t d = 0; d < o_.size(); ++d) {
      delta += d_o[d] * o_[d];
      delta_move += square(d_o[d] * o_move_[d]);
    }
    for (std::int64_t j = 0; j < problem_.seq_kv; ++j) {
      const Key& key = keys_[static_cast<std::size_t>(j)];
      if (!key.possible) continue;
      const std::int64_t row = key_row(b, h, j);
      const double* v = v_.data() + row * problem_.dim_v;
      double d_weight = 0, d_weight_move = 0;
      for (std::int64_t d = 0; d < problem_.dim_v; ++d) {
        d_weight += d_o[d] * v[d];
        d_weight_move += square(kFloatRoundoff * d_o[d] * v[d]);
        const auto at = static_cast<std::size_t>(row * problem_.dim_v + d);
        if (key.kept) gradient_.dv[at] += key.weight * d_o[d];
        squares_.dv[at] += square((weight_move(key) + key.weight * shared) * d_o[d]);
      }
      const double difference = d_weight - delta;
      const double relative = key.value_move + shared + kArithmetic;
      const double move = key.weight * std::sqrt(square(relative * difference) + square(kArithmetic * d_weight) +
                                                 d_weight_move + delta_move);
      score_gradient({b, h, i, j}, key, key.kept ? key.weight * difference : 0, move);
    }
  }

  /// Adds what one key gives to dq, dk and the operands, from the adjoint of its modified score and that adjoint's
  /// move.
  void score_gradient(const reference::Element& at, const Key& key, double upstream, double upstream_move) {
    const std::vector<Root>& roots = derivative_program_.roots();
    std::vector<double> center(roots.size()), move(roots.size());
    std::vector<std::int64_t> entry(roots.size(), 0);
    derivative_->evaluate(at, key.score, upstream);
    for (std::size_t r = 0; r < roots.size(); ++r) {
      if (!is_adjoint(roots[r])) continue;
      center[r] = derivative_->at(roots[r].node);
      if (roots[r].kind == RootKind::kOperandAdjoint) entry[r] = derivative_->target_entry(roots[r]);
    }
    for (const double side : {-1.0, 1.0}) {
      derivative_->evaluate(at, key.score + side * key.score_move, upstream);
      for (std::size_t r = 0; r < roots.size(); ++r) {
        if (!is_adjoint(roots[r])) continue;
        const double difference = std::abs(derivative_->at(roots[r].node) - center[r]);
        move[r] = std::isnan(difference) ? difference : std::max(move[r], difference);
      }
    }
    derivative_->evaluate(at, key.score, upstream_move);
    for (std::size_t r = 0; r < roots.size(); ++r) {
      const Root& root = roots[r];
      if (!is_adjoint(root)) continue;
      const double total = std::abs(derivative_->at(root.node)) + move[r] + kArithmetic * std::abs(center[r]);
      if (root.kind == RootKind::kScoreAdjoint) {
        add_score_gradient(at, center[r], total + store_ * std::abs(center[r]));
      } else {
        gradient_.d_operands[root.operand][static_cast<std::size_t>(entry[r])] += center[r];
        squares_.d_operands[root.operand][static_cast<std::size_t>(entry[r])] += square(total);
      }
    }
  }

  void add_score_gradient(const reference::Element& at, double d_score, double move) {
    const std::int64_t q_start = query_row(at.batch, at.head, at.query) * problem_.dim_qk;
    const std::int64_t k_start = key_row(at.batch, at.head, at.key) * problem_.dim_qk;
    for (std::int64_t d = 0; d < problem_.dim_qk; ++d) {
      const auto q = static_cast<std::size_t>(q_start + d);
      const auto k = static_cast<std::size_t>(k_start + d);
      gradient_.dq[q] += scale_ * d_score * k_[k];
      gradient_.dk[k] += scale_ * d_score * q_[q];
      squares_.dq[q] += square(scale_ * move * k_[k]);
      squares_.dk[k] += square(scale_ * move * q_[q]);
    }
  }

  static bool is_adjoint(const Root& root) {
    return root.kind == RootKind::kScoreAdjoint || root.kind == RootKind::kOperandAdjoint;
  }

  const AttentionProblem& problem_;
  const double scale_;
  const double store_;  ///< of q, k, v, o and their gradients
  const std::vector<double> q_, k_, v_;
  std::vector<double> d_o_;
  const std::vector<reference::OperandView> operands_;
  Interpreter<double> program_;
  Program derivative_program_;
  std::optional<Interpreter<double>> derivative_;
  std::vector<Key> keys_;
  std::vector<double> o_, o_move_;
  RoundingBand band_;
  reference::BackwardResult<double> gradient_;  ///< the values themselves
  reference::BackwardResult<double> squares_;   ///< of the moves
};

}  // namespace

double unit_roundoff(DType dtype) {
  switch (dtype) {
    case DType::kF16: return 0x1p-11;
    case DType::kBF16: return 0x1p-8;
    default: return kFloatRoundoff;
  }
}

RoundingBand rounding_band(const compiler::CompiledProblem& compiled, const reference::InputTensors& inputs,
                           const backend::CallParameters& parameters, const reference::Progress& progress) {
  Band band(compiled, inputs, parameters);
  reference::for_each_row(compiled.problem, progress,
                          [&](std::int64_t b, std::int64_t h, std::int64_t i) { band.add_row(b, h, i); });
  return band.take();
}

}  // namespace scoremod::checking
