#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "scoremod/attention.hpp"

#include "ir/scalar_eval.hpp"

namespace scoremod::backend::reference {

/// Local position of one score.
struct Element {
  std::int64_t batch = 0, head = 0, query = 0, key = 0;
};

/// An operand's memory and how to find its entries.
struct OperandView {
  OperandDecl decl;
  DType dtype = DType::kF32;
  const void* data = nullptr;
  std::vector<std::int64_t> shape;
  std::array<std::int64_t, kMaxTableRank> strides{};

  /// Number of entries.
  std::int64_t size() const;
  /// An entry's number in dense order (last dimension innermost) from its indices, one per dimension, each clamped to
  /// the shape.
  std::int64_t dense_index(std::span<const std::int64_t> indices) const;
  /// Distance in elements from data to the entry of this dense number.
  std::int64_t offset(std::int64_t dense_index) const;
};

/// The views of a problem's operands over their data, in the order of the program's declarations.
std::vector<OperandView> view_operands(const AttentionProblem& problem, std::span<const void* const> data);

/// Computes a program at one element after another, node by node, with ir::eval_op: the meaning, without any
/// cleverness.
template <class Real>
class Interpreter {
 public:
  /// The program's operands must be those of the views. Both must outlive the interpreter.
  Interpreter(const Program& program, const std::vector<OperandView>& operands, const IndexOffsets& offsets);

  /// Moves the results of functions (ir::Rounding::kFunction) from now on by this part of the larger of 1 and the
  /// result. Functions that are never 0 move by this part of the result. Values that are not finite stay.
  void move_functions(double part) { function_move_ = part; }

  /// Computes every node. score is already scaled; upstream is read by derivatives only.
  void evaluate(const Element& element, Real score, Real upstream = 0);

  /// The value of the last evaluated element.
  Real value() const { return values_[program_.value()].f; }
  /// Whether the mask keeps the key and its modified score is not -inf.
  bool keeps() const;
  /// A root's f32 value.
  Real at(NodeId node) const { return values_[node].f; }
  /// Any node's value; the program says which member holds it.
  const ir::Scalar<Real>& scalar(NodeId node) const { return values_[node]; }
  /// The value of a kGather node at other indices.
  ir::Scalar<Real> gathered(const Node& node, std::span<const std::int64_t> indices) const;
  /// The entry, in dense order, that a kOperandAdjoint root adds to.
  std::int64_t target_entry(const Root& root) const;

 private:
  Real moved(Op op, Real result) const;
  ir::Scalar<Real> leaf(const Node& node, Real score, Real upstream) const;
  ir::Scalar<Real> read(const OperandView& operand, std::int64_t entry) const;
  std::int64_t entry_of(const OperandView& operand, std::span<const NodeId> indices) const;

  const Program& program_;
  const std::vector<OperandView>& operands_;
  IndexOffsets offsets_;
  Element element_;
  double function_move_ = 0;
  std::vector<ir::Scalar<Real>> values_;
};

extern template class Interpreter<float>;
extern template class Interpreter<double>;

}  // namespace scoremod::backend::reference
