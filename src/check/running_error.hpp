#pragma once

#include <vector>

#include "backend/reference/interpreter.hpp"

namespace scoremod::checking {

/// How far the float32 roundings inside a program may move each of its f32 nodes at one element, to first order. The
/// leaves (score and upstream among them) are taken as exact. This is a running error analysis, carried along with the
/// float64 value of each node. See Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 3.3.
/// With u = 2^-24 and e(x) the move of x,
///
/// - e(x + y) = e(x) + e(y) + u |x + y|, likewise x - y
/// - e(x y) = |y| e(x) + |x| e(y) + u |x y|
/// - any other f32 op f: r |f|, with r = u if f is correctly rounded (x / y, sqrt), else 2 u. Each of its f32 arguments
///   x adds max |f(x +- (e(x) + r |x|)) - f(x)|, the others held: f's slope at work. The argument's own r |x| allows
///   for exp as exp2(x log2(e)) with a rounded constant, x / y as x (1 / y), and the like
/// - x % y, as x - floor(x / y) y: u max(|x|, |y|) in place of r |f|
/// - where functions are approximations, each that is not correctly rounded adds function_error max(1, |f|)
/// - operations that only select or change a sign (select, min, max, abs, -, floor, ...) add no rounding of their own
/// - operations that only select or change a sign (select, min, max, abs, -, floor, ...) add no rounding of their own
/// - a sum, difference, product, quotient, remainder or square root of exact arguments is exact where float32 holds it:
///   index arithmetic has no move
///
/// - an i32 node moves if a conversion i32(x) within x's move may give another integer, or a comparison may come out
///   either way. Everything computed from it moves too, and a table read at it. (A gradient's entry of a table does
///   not.) Other i32 nodes have no move
///
/// A value that is not finite has none; a move that is not finite says that the
/// value is too ill-conditioned to be compared.
class RunningError {
 public:
  /// The program must outlive this.
  explicit RunningError(const Program& program, double function_error = 0)
      : program_(program),
        function_error_(function_error),
        moves_(program.nodes().size()),
        undecided_(program.nodes().size()) {}

  /// Computes the moves at the element that the interpreter (of the same program) evaluated last.
  void analyze(const backend::reference::Interpreter<double>& values);

  double at(NodeId node) const { return moves_[node]; }

 private:
  /// An f32's value or an i32's.
  double number(const backend::reference::Interpreter<double>& values, NodeId id) const;
  /// The move of a kGather node, whose indices may move.
  double move_of_read(const Node& node, double value, const backend::reference::Interpreter<double>& values) const;
  /// Whether a bool node may come out either way.
  bool is_undecided(const Node& node, const backend::reference::Interpreter<double>& values) const;
  double move_of(const Node& node, double value, const backend::reference::Interpreter<double>& values) const;
  /// The largest change of the node's value when its argument moves by this much to either side.
  double slope(const Node& node, double value, std::size_t arg, double move,
               const backend::reference::Interpreter<double>& values) const;

  const Program& program_;
  const double function_error_;
  std::vector<double> moves_;
  std::vector<bool> undecided_;  ///< of bool nodes
};

}  // namespace scoremod::checking
