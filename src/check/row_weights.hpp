#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "backend/reference/interpreter.hpp"
#include "backend/reference/naive_attention.hpp"
#include "check/rounded_sum.hpp"
#include "check/rounding_band.hpp"
#include "check/running_error.hpp"
#include "problem/call_dropout.hpp"

namespace scoremod::checking {

/// The error of the operations around a program's value or adjoint: a difference and a change of base, or two products.
inline constexpr double kOperations = 2 * kFloatRoundoff;
/// The error of a weight: its exponential, its sum and its quotient.
inline constexpr double kWeight = 4 * kFloatRoundoff;

/// One key of a row and its moves. Its weight is the softmax's, or the one it would have if rounding may keep it.
struct Key {
  bool possible = false;  ///< kept, or kept after a move of the score
  bool kept = false;
  double score = 0, score_move = 0;
  double value = 0, value_move = 0;
  double function_move = 0;  ///< the part of value_move that approximate functions make
  double weight = 0;
  double d_weight = 0, d_weight_move = 0;
  double share = 1;   ///< the dropout factor of the weight in the output
  bool sure = false;  ///< kept, whatever rounding does
};

/// How far a row moves as a whole.
struct RowMoves {
  double weight = 0;  ///< all weights of the forward together, relatively
  double lse = 0;     ///< and so all weights of the backward, which come from it
  double delta = 0;   ///< D
};

/// The softmax of a row and its output in float64, and how far rounding moves them. rounding_band.hpp has the parts: s,
/// v, P, the LSE, the largest value and o. Its constructor's arguments must outlive it.
class RowWeights {
 public:
  RowWeights(const compiler::CompiledProblem& compiled, const backend::reference::InputTensors& inputs,
             const backend::CallParameters& parameters, const ErrorSources& sources);

  /// Works out one row; the rest is of the last one.
  void weigh(std::int64_t b, std::int64_t h, std::int64_t i);
  /// Whether it has no key, whatever rounding does.
  bool is_empty() const { return is_empty_; }
  /// In the order of the keys; a backward notes more in them.
  std::vector<Key>& keys() { return keys_; }
  /// Without D's.
  const RowMoves& moves() const { return moves_; }
  /// 0 for a row with neither a key nor a sink.
  double lse_move() const { return lse_move_; }
  double max_logit_move() const { return max_logit_move_; }
  /// The sink's weight, and how far it is from the LSE.
  double sink_weight() const { return sink_weight_; }
  double sink_distance() const { return sink_distance_; }
  const std::vector<double>& o() const { return o_; }
  const std::vector<double>& o_moves() const { return o_move_; }
  /// The sums that o is, whose roundings are a part of its moves.
  const std::vector<RoundedSum>& o_sums() const { return o_sums_; }
  /// A weight's, with that of its store.
  double weight_move(const Key& key) const { return key.weight * (key.value_move + kWeight + store) + smallest_weight; }

  std::int64_t query_row(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return (b * problem.heads_q + h) * problem.seq_q + i;
  }
  std::int64_t key_row(std::int64_t b, std::int64_t h, std::int64_t j) const {
    return (b * problem.heads_kv + h / (problem.heads_q / problem.heads_kv)) * problem.seq_kv + j;
  }

  const AttentionProblem& problem;
  const double scale;
  /// The result that float32 may give for any weight below its normal numbers. These moves have one sign, while moves
  /// are added in quadrature. So each is multiplied by the root of a sum's number of terms.
  const double smallest_weight;
  const double store;  ///< of weights and of gradients of scores
  const std::vector<double> q, k, v;
  const std::vector<backend::reference::OperandView> operands;

 private:
  /// Evaluates the program at one key, at its score and to both sides of it.
  void modify(const backend::reference::Element& at, Key& key);
  void add_program_error(Key& key);
  /// Fills keys_; returns the row's LSE.
  double weigh_keys(std::int64_t b, std::int64_t h, std::int64_t i);
  /// For a row whose sink leaves its keys nothing, and is its LSE.
  double leave_to_sink(double sink);
  /// How far the largest value can move: up to the highest that a key may reach, down to a value that one surely keeps.
  /// The LSE's own allowance comes on top, which is the same number for a single key.
  double move_of_largest(double maximum) const;
  /// A weight's move in o, where `lost` is the part of the row's weights that may be lost.
  double move_in_output(const Key& key, double lost) const;
  void output_row(std::int64_t b, std::int64_t h);

  backend::reference::Interpreter<double> program_;
  const problem::CallDropout dropout_;
  const double function_error_;
  const backend::ForwardRounding rounding_;
  const double largest_read_lse_;        ///< in magnitude: beyond, the backward's weights come from the row's maximum
  RunningError program_error_;           ///< of roundings alone
  RunningError function_program_error_;  ///< and of approximate functions
  std::vector<Key> keys_;
  RowMoves moves_;
  bool is_empty_ = false;
  double lse_move_ = 0, max_logit_move_ = 0, sink_weight_ = 0, sink_distance_ = 0;
  double log_sum_ = 0;  ///< the LSE less the maximum
  std::vector<RoundedSum> o_sums_;
  std::vector<double> o_, o_move_, o_magnitude_, o_lost_;
};

}  // namespace scoremod::checking
