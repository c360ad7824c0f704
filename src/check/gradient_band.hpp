#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "backend/reference/interpreter.hpp"
#include "check/row_weights.hpp"
#include "check/running_error.hpp"

namespace scoremod::checking {

/// How an element of a gradient changes when its row moves by one unit of D, and of the weights' relative move. The
/// keys of a row move together, so these are summed over them, with signs, before they are squared.
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

/// How far rounding moves the gradients, from rows whose weights are known: the parts of rounding_band.hpp about dP, D,
/// g, d_score and their sums. Its constructor's arguments must outlive it.
class GradientBand {
 public:
  /// The problem was compiled with a derivative, and the inputs have d_o.
  GradientBand(const compiler::CompiledProblem& compiled, const backend::reference::InputTensors& inputs,
               const backend::CallParameters& parameters, const ErrorSources& sources, RowWeights& rows);

  /// Adds the row that was weighed last.
  void add_row(std::int64_t b, std::int64_t h, std::int64_t i);
  /// The band of all rows.
  backend::reference::BackwardResult<double> take() const;

 private:
  backend::reference::BackwardResult<double> empty_gradient() const;
  /// The sink's weight times D, with the moves of both.
  void add_sink_gradient(std::int64_t h, double delta);
  /// Fills the key's d_weight, and adds its term of dv.
  void value_gradient(Key& key, std::int64_t row, const double* d_o);
  /// The move of the product with dropout's factor.
  double dropout_move(const Key& key) const;
  /// Adds a term with its move to a sum, which is rounded.
  static void add_term(double term, double move, double& sum, double& squares);
  template <class Body>
  void for_each_adjoint(const Body& body);
  /// Adds one key's terms of dq, dk and the operands. They come from the adjoint of its modified score and the key's
  /// own part of that adjoint's move.
  void score_gradient(const backend::reference::Element& at, const Key& key, double upstream, double upstream_move);
  void add_score_gradient(const backend::reference::Element& at, const Adjoint& d_score, const RowSlopes& slopes);
  void add_operand_gradient(std::uint32_t operand, const Adjoint& adjoint, const RowSlopes& slopes);
  /// Adds the terms of the row's common moves to its dq and to the operands' entries that it has touched.
  void add_row_moves(std::int64_t q_start);

  RowWeights& rows_;
  const double store_gradients_;  ///< of dq, dk and dv
  const double store_o_;          ///< of o
  const std::vector<double> d_o_;
  const std::vector<double> given_o_;  ///< that deltas are made of; none where they are made of the row's own o
  const Program derivative_program_;
  backend::reference::Interpreter<double> derivative_;
  RunningError derivative_error_;
  RowMoves row_;
  std::vector<Adjoint> adjoints_;     ///< one for each root of the derivative
  std::vector<RowSlopes> dq_slopes_;  ///< of the row's dq
  std::vector<std::vector<RowSlopes>> operand_slopes_;
  std::vector<std::pair<std::size_t, std::size_t>> touched_;  ///< operands and entries for which the row has slopes
  backend::reference::BackwardResult<double> gradient_;       ///< the values themselves
  backend::reference::BackwardResult<double> squares_;        ///< of the moves
};

}  // namespace scoremod::checking
