#include "check/running_error.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "ir/builder.hpp"
#include "ir/op_rounding.hpp"
#include "ir/scalar_eval.hpp"

namespace scoremod::checking {
namespace {

using Values = backend::reference::Interpreter<double>;

constexpr double kRoundoff = 0x1p-24;

/// What rounding an op's result does to it, relatively: u where it is the nearest float, 2 u where it is one of the two
/// floats around it.
double roundoff_of(Op op) {
  switch (ir::rounding_of(op)) {
    case ir::Rounding::kNone: return 0;
    case ir::Rounding::kNearest: return kRoundoff;
    case ir::Rounding::kFunction: return 2 * kRoundoff;
  }
  return 0;
}

bool is_float(double x) { return static_cast<double>(static_cast<float>(x)) == x; }

}  // namespace

void RunningError::analyze(const Values& values) {
  const std::vector<Node>& nodes = program_.nodes();
  for (NodeId id = 0; id < nodes.size(); ++id) {
    const Node& node = nodes[id];
    undecided_[id] = node.type == Type::kBool && is_undecided(node, values);
    const bool exact = node.type != Type::kF32 || ir::info(node.op).signature == ir::Signature::kLeaf;
    moves_[id] = exact || !std::isfinite(values.at(id)) ? 0 : move_of(node, values.at(id), values);
  }
}

bool RunningError::is_undecided(const Node& node, const Values& values) const {
  const auto arg_is = [&](NodeId arg) { return undecided_[arg]; };
  switch (node.op) {
    case Op::kEq:
    case Op::kNe:
    case Op::kLt:
    case Op::kLe:
    case Op::kGt:
    case Op::kGe: {
      if (program_.nodes()[node.args[0]].type != Type::kF32) return false;
      const double move = moves_[node.args[0]] + moves_[node.args[1]];
      return move > 0 && std::abs(values.at(node.args[0]) - values.at(node.args[1])) <= move;
    }
    case Op::kAnd:
    case Op::kOr: {
      // What the other side decides alone, this one may not change.
      const bool deciding = node.op == Op::kOr;
      for (std::size_t i = 0; i < 2; ++i) {
        const NodeId other = node.args[1 - i];
        if (arg_is(node.args[i]) && (arg_is(other) || values.scalar(other).b != deciding)) return true;
      }
      return false;
    }
    default: return std::ranges::any_of(ir::args_of(node), arg_is);
  }
}

double RunningError::move_of(const Node& node, double value, const Values& values) const {
  const auto x = [&](std::size_t arg) { return std::abs(values.at(node.args[arg])); };
  const auto e = [&](std::size_t arg) { return moves_[node.args[arg]]; };
  if (node.op == Op::kToF32 && undecided_[node.args[0]]) return 1;
  if (node.op == Op::kSelect && undecided_[node.args[0]]) {
    return std::abs(values.at(node.args[1]) - values.at(node.args[2])) + std::max(e(1), e(2));
  }
  const double roundoff = roundoff_of(node.op);
  if (roundoff == kRoundoff && is_float(value) &&
      std::ranges::all_of(ir::args_of(node), [&](NodeId arg) { return moves_[arg] == 0 && is_float(values.at(arg)); }))
    return 0;
  if (node.op == Op::kAdd || node.op == Op::kSub) return e(0) + e(1) + kRoundoff * std::abs(value);
  if (node.op == Op::kMul) return x(1) * e(0) + x(0) * e(1) + kRoundoff * std::abs(value);
  double move = 0;
  for (std::size_t arg = 0; arg < node.arg_count; ++arg) {
    if (program_.nodes()[node.args[arg]].type != Type::kF32) continue;
    move += slope(node, value, arg, e(arg) + roundoff * x(arg), values);
  }
  if (roundoff == 0) return move;
  if (roundoff > kRoundoff) move += function_error_ * std::max(1.0, std::abs(value));
  return move + roundoff * (node.op == Op::kMod ? std::max(x(0), x(1)) : std::abs(value));
}

double RunningError::slope(const Node& node, double value, std::size_t arg, double move, const Values& values) const {
  if (move == 0 || !std::isfinite(values.at(node.args[arg]))) return 0;
  std::array<ir::Scalar<double>, kMaxArgs> args;
  for (std::size_t i = 0; i < std::min<std::size_t>(node.arg_count, kMaxArgs); ++i) {
    args[i] = values.scalar(node.args[i]);
  }
  const double center = args[arg].f;
  double largest = 0;
  for (const double moved : {center - move, center + move}) {
    args[arg].f = moved;
    const auto result =
        ir::eval_op<double>(node, program_.nodes()[node.args[0]].type, std::span(args).first(node.arg_count));
    const double change = std::abs(result.f - value);
    largest = change > largest || std::isnan(change) ? change : largest;
    if (std::isnan(change)) break;
  }
  return largest;
}

}  // namespace scoremod::checking
