#include "check/rounding_band.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "backend/reference/dense_tensor.hpp"
#include "backend/reference/interpreter.hpp"
#include "backend/reference/sink_value.hpp"
#include "base/element.hpp"
#include "check/running_error.hpp"
#include "problem/call_dropout.hpp"

namespace scoremod::checking {
namespace {

namespace reference = backend::reference;
using backend::reference::Interpreter;
using problem::TensorRole;

constexpr double kFloatRoundoff = 0x1p-24;
/// Of the operations around a program's value or adjoint: a difference and a change of base, or two products.
constexpr double kOperations = 2 * kFloatRoundoff;
/// Of a weight: its exponential, its sum and its quotient.
constexpr double kWeight = 4 * kFloatRoundoff;

/// What float32 may take each weight for that lies below its normal numbers. These moves have one sign, while moves are
/// added in quadrature: each counts as many times as the root of the terms that a sum may have.
double smallest_weight(const AttentionProblem& problem) {
  const double rows = static_cast<double>(problem.batch * problem.heads_q) * static_cast<double>(problem.seq_q);
  return 2 * 0x1p-126 * std::sqrt(rows * static_cast<double>(problem.seq_kv));
}

double square(double x) { return x * x; }

/// The move of a float32 sum whose terms have this magnitude: without bound where the sum may overflow on the way,
/// which depends on the order.
double unless_overflow(double magnitude, double move) {
  return magnitude > std::numeric_limits<float>::max() ? std::numeric_limits<double>::infinity() : move;
}

/// One key of a row: its softmax weight, or for a key that rounding may bring in the weight it would have, and its
/// moves.
struct Key {
  bool possible = false;  ///< kept, or kept after a move of the score
  bool kept = false;
  double score = 0, score_move = 0;
  double value = 0, value_move = 0;
  double function_move = 0;  ///< the part of value_move that approximate functions make
  double weight = 0;
  double d_weight = 0, d_weight_move = 0;
  double share = 1;   ///< what dropout multiplies the weight by where it goes into the output
  bool sure = false;  ///< kept, whatever rounding does
};

/// How far a row moves as a whole.
struct RowMoves {
  double weight = 0;  ///< all weights of the forward together, relatively
  double lse = 0;     ///< and so all weights of the backward, which come from it
  double delta = 0;   ///< D
};

/// What an element of a gradient gets when its row moves by one unit of D, and of the weights' relative move. The keys
/// of a row move together, so this is summed over them, with signs, before it is squared.
struct RowSlopes {
  double delta = 0, weight = 0;

  void add(double factor, const RowSlopes& other) {
    delta += factor * other.delta;
    weight += factor * other.weight;
  }
  double square_move(const RowMoves& row) const { return square(delta * row.delta) + square(weight * row.lse); }
};

/// One root of the derivative at one key.
struct Adjoint {
  double value = 0;
  double move = 0;
  std::size_t entry = 0;  ///< of the operand
};

/// A sum in float32: its value, and the square of what its roundings may move it by. Each product and each partial sum
/// is rounded.
struct RoundedSum {
  double value = 0, magnitude = 0, square_move = 0;

  void add(double term) {
    value += term;
    magnitude += std::abs(term);
    square_move += square(kFloatRoundoff * term) + square(kFloatRoundoff * value);
  }
};

class Band {
 public:
  Band(const compiler::CompiledProblem& compiled, const reference::InputTensors& inputs,
       const backend::CallParameters& parameters, const ErrorSources& sources)
      : problem_(compiled.problem),
        scale_(parameters.scale),
        smallest_weight_(smallest_weight(problem_)),
        store_(unit_roundoff(problem::product_dtype(problem_))),
        store_gradients_(unit_roundoff(problem::dtype_of(problem_, TensorRole::kDQ))),
        store_o_(unit_roundoff(problem::dtype_of(problem_, TensorRole::kO))),
        q_(reference::load_dense<double>(problem_, TensorRole::kQ, inputs.q, inputs.operands)),
        k_(reference::load_dense<double>(problem_, TensorRole::kK, inputs.k, inputs.operands)),
        v_(reference::load_dense<double>(problem_, TensorRole::kV, inputs.v, inputs.operands)),
        operands_(reference::view_operands(problem_, inputs.operands)),
        scale_o_(problem::StoredUnit(problem_, TensorRole::kO).scale(inputs.operands)),
        program_(problem_.program, operands_, parameters.offsets),
        dropout_(problem_, parameters.dropout_seed, parameters.dropout_offset, parameters.offsets, inputs.operands),
        function_error_(sources.function_error),
        largest_read_lse_(sources.backward_reads_lse ? std::numeric_limits<double>::infinity() : backend::kMaxReadLse),
        program_error_(problem_.program),
        function_program_error_(problem_.program, function_error_),
        keys_(static_cast<std::size_t>(problem_.seq_kv)),
        o_(static_cast<std::size_t>(problem_.dim_v)),
        o_move_(o_.size()),
        o_magnitude_(o_.size()) {
    if (inputs.d_o == nullptr || !compiled.backward) return;
    d_o_ = reference::load_dense<double>(problem_, TensorRole::kDO, inputs.d_o, inputs.operands);
    if (inputs.o != nullptr && problem_.given_deltas)
      given_o_ = reference::load_dense<double>(problem_, TensorRole::kO, inputs.o, inputs.operands);
    derivative_program_ = compiled.backward->program;
    derivative_.emplace(derivative_program_, operands_, parameters.offsets);
    derivative_error_.emplace(derivative_program_, function_error_);
    gradient_ = empty_gradient();
    squares_ = empty_gradient();
    dq_slopes_.resize(static_cast<std::size_t>(problem_.dim_qk));
    for (const std::vector<double>& entries : gradient_.d_operands) operand_slopes_.emplace_back(entries.size());
  }

  void add_row(std::int64_t b, std::int64_t h, std::int64_t i) {
    const double lse = weigh_keys(b, h, i);
    double squares = 0, common = 0;
    for (const Key& key : keys_) {
      if (!key.possible) continue;
      squares += square(key.weight * key.value_move);
      common += key.weight * key.function_move;
    }
    row_.weight = std::sqrt(squares) + common;
    const double own_functions = function_error_ * (1 + std::max(1.0, log_sum_));
    row_.lse = row_.weight + own_functions + kWeight * (1 + std::min(std::abs(lse), largest_read_lse_));
    const bool empty = std::none_of(keys_.begin(), keys_.end(), [](const Key& key) { return key.possible; });
    band_.forward.lse.push_back(empty ? 0 : row_.weight + own_functions + kWeight * (1 + std::abs(lse)));
    band_.forward.max_logit.push_back(empty ? 0 : max_logit_move_);
    output_row(b, h);
    for (std::size_t d = 0; d < o_.size(); ++d) {
      const double move = empty ? 0 : o_move_[d];
      band_.forward.o.push_back(empty ? 0 : scale_o_ * (move + store_o_ * std::abs(o_[d])));
      largest_o_move_ = std::max(largest_o_move_, move);
    }
    if (derivative_ && !empty) gradient_row(b, h, i);
  }

  RoundingBand take() {
    band_.forward.amax_o = {largest_o_move_};
    if (derivative_) {
      const auto finish = [](std::vector<double>& out, const std::vector<double>& squares,
                             const std::vector<double>& sums, double store) {
        for (std::size_t i = 0; i < squares.size(); ++i)
          out.push_back(std::sqrt(squares[i]) + store * std::abs(sums[i]));
      };
      finish(band_.backward.dq, squares_.dq, gradient_.dq, store_gradients_);
      finish(band_.backward.dk, squares_.dk, gradient_.dk, store_gradients_);
      finish(band_.backward.dv, squares_.dv, gradient_.dv, store_gradients_);
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

  void add_program_error(Key& key) {
    const NodeId root = problem_.program.value();
    program_error_.analyze(program_);
    key.value_move = program_error_.at(root);
    if (function_error_ == 0) return;
    function_program_error_.analyze(program_);
    key.function_move = function_program_error_.at(root) - key.value_move;
    key.value_move += key.function_move;
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
      key.score_move =
          unless_overflow(std::max(1.0, std::abs(scale_)) * magnitude, kFloatRoundoff * std::abs(scale_) * magnitude);
      modify({b, h, i, j}, key);
      if (problem_.dropout > 0) {
        const bool stays = dropout_.keeps(b, h, i, j);
        key.share = stays ? dropout_.factor() : 0;
      }
      if (key.kept && !(key.value <= maximum)) maximum = key.value;
    }
    max_logit_move_ = max_logit_move(maximum);
    const auto sink = reference::sink_value<double>(problem_, operands_, h);
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

  /// How far the largest value moves: up to where a key may come, down to where one surely stays; and what the LSE is
  /// allowed for itself, which is the same number where there is one key.
  double max_logit_move(double maximum) const {
    double lowest = -std::numeric_limits<double>::infinity(), highest = maximum;
    for (const Key& key : keys_) {
      if (key.possible) highest = std::max(highest, key.value + key.value_move);
      if (key.sure) lowest = std::max(lowest, key.value - key.value_move);
    }
    return std::max(highest - maximum, maximum - lowest) + kWeight * (1 + std::abs(maximum));
  }

  double weight_move(const Key& key) const {
    return key.weight * (key.value_move + kWeight + store_) + smallest_weight_;
  }

  void output_row(std::int64_t b, std::int64_t h) {
    std::fill(o_.begin(), o_.end(), 0);
    std::fill(o_move_.begin(), o_move_.end(), 0);
    std::fill(o_magnitude_.begin(), o_magnitude_.end(), 0);
    for (std::int64_t j = 0; j < problem_.seq_kv; ++j) {
      const Key& key = keys_[static_cast<std::size_t>(j)];
      if (!key.possible) continue;
      const double* v = v_.data() + key_row(b, h, j) * problem_.dim_v;
      const double move = key.share * weight_move(key);
      if (key.share == 0) continue;
      for (std::size_t d = 0; d < o_.size(); ++d) {
        if (key.kept) o_[d] += key.share * key.weight * v[d];
        o_move_[d] += square(move * v[d]);
        o_magnitude_[d] += key.share * key.weight * std::abs(v[d]);
      }
    }
    // Weights may be divided by their sum only in the end.
    for (std::size_t d = 0; d < o_.size(); ++d) {
      const double move = std::sqrt(o_move_[d]) + row_.weight * std::abs(o_[d]);
      o_move_[d] = unless_overflow(o_magnitude_[d] * std::exp(log_sum_), move);
    }
  }

  /// The weights are computed anew, from the LSE.
  void gradient_row(std::int64_t b, std::int64_t h, std::int64_t i) {
    const double* d_o = d_o_.data() + query_row(b, h, i) * problem_.dim_v;
    const double* given = given_o_.empty() ? nullptr : given_o_.data() + query_row(b, h, i) * problem_.dim_v;
    RoundedSum delta;
    double delta_square = 0;
    for (std::size_t d = 0; d < o_.size(); ++d) {
      delta.add(d_o[d] * (given != nullptr ? given[d] : o_[d]));
      if (given == nullptr) delta_square += square(store_o_ * d_o[d] * o_[d]);
    }
    for (std::int64_t j = 0; j < problem_.seq_kv; ++j) {
      Key& key = keys_[static_cast<std::size_t>(j)];
      if (!key.possible) continue;
      value_gradient(key, key_row(b, h, j), d_o);
      if (given == nullptr) delta_square += square(weight_move(key) * key.d_weight);
    }
    if (given == nullptr) delta_square += square(row_.weight * delta.value);
    row_.delta = unless_overflow(delta.magnitude, std::sqrt(delta_square + delta.square_move));
    add_sink_gradient(h, delta.value);
    for (std::int64_t j = 0; j < problem_.seq_kv; ++j) {
      const Key& key = keys_[static_cast<std::size_t>(j)];
      if (!key.possible) continue;
      const double difference = key.d_weight - delta.value;
      const double move = key.weight * std::hypot((key.value_move + kWeight) * difference, key.d_weight_move) +
                          smallest_weight_ * std::abs(difference);
      score_gradient({b, h, i, j}, key, key.kept ? key.weight * difference : 0, move);
    }
    add_row_moves(query_row(b, h, i) * problem_.dim_qk);
  }

  /// The sink's weight times D, with the moves of both.
  void add_sink_gradient(std::int64_t h, double delta) {
    const auto sink = problem::sink_operand(problem_);
    if (!sink) return;
    const double relative = row_.lse + kWeight + kOperations * sink_distance_;
    const auto entry = static_cast<std::size_t>(h);
    add_term(-sink_weight_ * delta,
             sink_weight_ * (row_.delta + relative * std::abs(delta)) + smallest_weight_ * std::abs(delta),
             gradient_.d_operands[*sink][entry], squares_.d_operands[*sink][entry]);
  }

  /// Fills the key's d_weight, and adds what it gives to dv.
  void value_gradient(Key& key, std::int64_t row, const double* d_o) {
    const double* v = v_.data() + row * problem_.dim_v;
    key.d_weight = key.d_weight_move = 0;
    if (key.share == 0) return;
    const double move = key.share * (weight_move(key) + key.weight * row_.lse);
    RoundedSum d_weight;
    for (std::int64_t d = 0; d < problem_.dim_v; ++d) {
      d_weight.add(d_o[d] * v[d]);
      const auto at = static_cast<std::size_t>(row * problem_.dim_v + d);
      add_term(key.kept ? key.share * key.weight * d_o[d] : 0, move * d_o[d], gradient_.dv[at], squares_.dv[at]);
    }
    key.d_weight = key.share * d_weight.value;
    key.d_weight_move = unless_overflow(key.share * d_weight.magnitude,
                                        key.share * std::sqrt(d_weight.square_move) + dropout_move(key));
  }

  /// Of the product with dropout's factor.
  double dropout_move(const Key& key) const {
    return problem_.dropout > 0 ? 2 * kFloatRoundoff * std::abs(key.d_weight) : 0;
  }

  /// Adds a term with its move to a sum, which is rounded.
  static void add_term(double term, double move, double& sum, double& squares) {
    sum += term;
    squares += unless_overflow(std::abs(term) + std::abs(sum), square(move) + square(kFloatRoundoff * sum));
  }

  template <class Body>
  void for_each_adjoint(const Body& body) {
    const std::vector<Root>& roots = derivative_program_.roots();
    for (std::size_t r = 0; r < roots.size(); ++r) {
      const bool is_adjoint = roots[r].kind == RootKind::kScoreAdjoint || roots[r].kind == RootKind::kOperandAdjoint;
      if (is_adjoint) body(roots[r], adjoints_[r]);
    }
  }

  /// Adds what one key gives to dq, dk and the operands, from the adjoint of its modified score and the part of that
  /// adjoint's move that is the key's own.
  void score_gradient(const reference::Element& at, const Key& key, double upstream, double upstream_move) {
    adjoints_.assign(derivative_program_.roots().size(), {});
    derivative_->evaluate(at, key.score, upstream);
    for_each_adjoint([&](const Root& root, Adjoint& adjoint) {
      adjoint.value = derivative_->at(root.node);
      if (root.kind == RootKind::kOperandAdjoint)
        adjoint.entry = static_cast<std::size_t>(derivative_->target_entry(root));
    });
    for (const double side : {-1.0, 1.0}) {
      derivative_->evaluate(at, key.score + side * key.score_move, upstream);
      for_each_adjoint([&](const Root& root, Adjoint& adjoint) {
        const double difference = std::abs(derivative_->at(root.node) - adjoint.value);
        adjoint.move = std::isnan(difference) ? difference : std::max(adjoint.move, difference);
      });
    }
    // Adjoints are linear in the upstream one, and so are their roundings: an adjoint that is 0 only because the
    // upstream one is has those of the upstream one's move.
    const double largest = std::abs(upstream) * (1 + row_.lse) + upstream_move + key.weight * row_.delta;
    if (largest == 0) return;
    derivative_->evaluate(at, key.score, largest);
    derivative_error_->analyze(*derivative_);
    for_each_adjoint([&](const Root& root, Adjoint& adjoint) {
      const double slope = derivative_->at(root.node) / largest;
      adjoint.move +=
          std::abs(slope * upstream_move) + kOperations * std::abs(adjoint.value) + derivative_error_->at(root.node);
      const RowSlopes slopes{slope * key.weight, adjoint.value};
      if (root.kind == RootKind::kScoreAdjoint) {
        add_score_gradient(at, adjoint, slopes);
      } else {
        add_operand_gradient(root.operand, adjoint, slopes);
      }
    });
  }

  void add_score_gradient(const reference::Element& at, const Adjoint& d_score, const RowSlopes& slopes) {
    const std::int64_t q_start = query_row(at.batch, at.head, at.query) * problem_.dim_qk;
    const std::int64_t k_start = key_row(at.batch, at.head, at.key) * problem_.dim_qk;
    const double move = scale_ * (d_score.move + store_ * std::abs(d_score.value));
    const double dk_move = std::hypot(move, scale_ * std::sqrt(slopes.square_move(row_)));
    for (std::int64_t d = 0; d < problem_.dim_qk; ++d) {
      const auto q = static_cast<std::size_t>(q_start + d);
      const auto k = static_cast<std::size_t>(k_start + d);
      add_term(scale_ * d_score.value * k_[k], move * k_[k], gradient_.dq[q], squares_.dq[q]);
      add_term(scale_ * d_score.value * q_[q], dk_move * q_[q], gradient_.dk[k], squares_.dk[k]);
      dq_slopes_[static_cast<std::size_t>(d)].add(scale_ * k_[k], slopes);
    }
  }

  void add_operand_gradient(std::uint32_t operand, const Adjoint& adjoint, const RowSlopes& slopes) {
    const std::size_t entry = adjoint.entry;
    add_term(adjoint.value, adjoint.move, gradient_.d_operands[operand][entry], squares_.d_operands[operand][entry]);
    operand_slopes_[operand][entry].add(1, slopes);
    touched_.emplace_back(operand, entry);
  }

  /// Adds what the row's common moves give to its dq and to the operands' entries that it has touched.
  void add_row_moves(std::int64_t q_start) {
    for (std::size_t d = 0; d < dq_slopes_.size(); ++d)
      squares_.dq[static_cast<std::size_t>(q_start) + d] += std::exchange(dq_slopes_[d], {}).square_move(row_);
    for (const auto& [operand, entry] : touched_)
      squares_.d_operands[operand][entry] += std::exchange(operand_slopes_[operand][entry], {}).square_move(row_);
    touched_.clear();
  }

  const AttentionProblem& problem_;
  const double scale_;
  const double smallest_weight_;
  const double store_;            ///< of weights and of gradients of scores
  const double store_gradients_;  ///< of dq, dk and dv
  const double store_o_;          ///< of o
  const std::vector<double> q_, k_, v_;
  std::vector<double> d_o_;
  std::vector<double> given_o_;  ///< that deltas are made of; none where they are made of the row's own o
  const std::vector<reference::OperandView> operands_;
  const double scale_o_;
  Interpreter<double> program_;
  const problem::CallDropout dropout_;
  Program derivative_program_;
  std::optional<Interpreter<double>> derivative_;
  std::optional<RunningError> derivative_error_;
  const double function_error_;
  const double largest_read_lse_;        ///< in magnitude: beyond, the backward's weights come from the row's maximum
  RunningError program_error_;           ///< of roundings alone
  RunningError function_program_error_;  ///< and of approximate functions
  double sink_weight_ = 0, sink_distance_ = 0;  ///< of the row: the sink's weight, and how far it is from the LSE
  double max_logit_move_ = 0;                   ///< of the row
  double largest_o_move_ = 0;                   ///< of all rows, without the store
  double log_sum_ = 0;                          ///< of the row: its LSE less its maximum
  std::vector<Key> keys_;
  RowMoves row_;
  std::vector<Adjoint> adjoints_;     ///< one for each root of the derivative
  std::vector<RowSlopes> dq_slopes_;  ///< of the row's dq
  std::vector<std::vector<RowSlopes>> operand_slopes_;
  std::vector<std::pair<std::size_t, std::size_t>> touched_;  ///< operand and entry, of which the row has slopes
  std::vector<double> o_, o_move_, o_magnitude_;
  RoundingBand band_;
  reference::BackwardResult<double> gradient_;  ///< the values themselves
  reference::BackwardResult<double> squares_;   ///< of the moves
};

}  // namespace

RoundingBand rounding_band(const compiler::CompiledProblem& compiled, const reference::InputTensors& inputs,
                           const backend::CallParameters& parameters, const ErrorSources& sources,
                           const reference::Progress& progress) {
  Band band(compiled, inputs, parameters, sources);
  reference::for_each_row(compiled.problem, progress,
                          [&](std::int64_t b, std::int64_t h, std::int64_t i) { band.add_row(b, h, i); });
  return band.take();
}

}  // namespace scoremod::checking
