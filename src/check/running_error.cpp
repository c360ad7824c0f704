#include "check/running_error.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "ir/builder.hpp"
#include "ir/op_rounding.hpp"
#include "ir/scalar_eval.hpp"

namespace scoremod::checking {
namespace {

using Values = backend::reference::Interpreter<double>;

constexpr double kRoundoff = 0x1p-24;

/// The relative error of rounding an op's result: u for the nearest float, 2 u for either float around it.
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
    const bool exact =
        node.type == Type::kBool || (node.op != Op::kGather && ir::info(node.op).signature == ir::Signature::kLeaf);
    moves_[id] = exact || !std::isfinite(number(values, id)) ? 0 : move_of(node, number(values, id), values);
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
      if (program_.nodes()[node.args[0]].type == Type::kBool) break;
      const double move = moves_[node.args[0]] + moves_[node.args[1]];
      return move > 0 && std::abs(number(values, node.args[0]) - number(values, node.args[1])) <= move;
    }
    case Op::kAnd:
    case Op::kOr: {
      // If the other side alone decides, this one may not change the result.
      const bool deciding = node.op == Op::kOr;
      for (std::size_t i = 0; i < 2; ++i) {
        const NodeId other = node.args[1 - i];
        if (arg_is(node.args[i]) && (arg_is(other) || values.scalar(other).b != deciding)) return true;
      }
      return false;
    }
    case Op::kToBool: {
      if (program_.nodes()[node.args[0]].type == Type::kBool) break;
      const double move = moves_[node.args[0]];
      return move > 0 && std::abs(number(values, node.args[0])) <= move;
    }
    case Op::kGather: return std::ranges::any_of(ir::args_of(node), [&](NodeId index) { return moves_[index] > 0; });
    default: break;
  }
  return std::ranges::any_of(ir::args_of(node), arg_is);
}

double RunningError::number(const Values& values, NodeId id) const {
  return program_.nodes()[id].type == Type::kI32 ? values.scalar(id).i : values.at(id);
}

double RunningError::move_of_read(const Node& node, double value, const Values& values) const {
  std::array<std::int64_t, kMaxArgs> indices{};
  for (std::size_t i = 0; i < node.arg_count; ++i) indices[i] = values.scalar(node.args[i]).i;
  double move = 0;
  for (std::size_t i = 0; i < node.arg_count; ++i) {
    const std::int64_t center = indices[i];
    const auto distance = static_cast<std::int64_t>(std::min(moves_[node.args[i]], 0x1p32));
    if (distance == 0) continue;
    double largest = 0;
    for (const std::int64_t index : {center - distance, center + distance}) {
      indices[i] = index;
      const auto read = values.gathered(node, std::span(indices).first(node.arg_count));
      const double change = std::abs((node.type == Type::kI32 ? read.i : read.f) - value);
      if (std::isfinite(change)) largest = std::max(largest, change);
    }
    indices[i] = center;
    move += largest;
  }
  return move;
}

double RunningError::move_of(const Node& node, double value, const Values& values) const {
  if (node.op == Op::kGather) return move_of_read(node, value, values);
  const auto x = [&](std::size_t arg) { return std::abs(number(values, node.args[arg])); };
  const auto e = [&](std::size_t arg) { return moves_[node.args[arg]]; };
  const bool of_bool = program_.nodes()[node.args[0]].type == Type::kBool;
  if (of_bool && node.op != Op::kSelect) return undecided_[node.args[0]] ? 1 : 0;
  if (node.op == Op::kSelect && undecided_[node.args[0]]) {
    return std::abs(number(values, node.args[1]) - number(values, node.args[2])) + std::max(e(1), e(2));
  }
  const double roundoff = node.type == Type::kI32 ? 0 : roundoff_of(node.op);
  if (roundoff == kRoundoff && is_float(value) &&
      std::ranges::all_of(ir::args_of(node), [&](NodeId arg) { return moves_[arg] == 0 && is_float(values.at(arg)); }))
    return 0;
  if (node.type == Type::kF32 && (node.op == Op::kAdd || node.op == Op::kSub))
    return e(0) + e(1) + kRoundoff * std::abs(value);
  if (node.type == Type::kF32 && node.op == Op::kMul) return x(1) * e(0) + x(0) * e(1) + kRoundoff * std::abs(value);
  double move = 0;
  for (std::size_t arg = 0; arg < node.arg_count; ++arg) {
    if (program_.nodes()[node.args[arg]].type == Type::kBool) continue;
    move += slope(node, value, arg, e(arg) + roundoff * x(arg), values);
  }
  if (roundoff == 0) return move;
  if (roundoff > kRoundoff) move += function_error_ * std::max(1.0, std::abs(value));
  return move + roundoff * (node.op == Op::kMod ? std::max(x(0), x(1)) : std::abs(value));
}

double RunningError::slope(const Node& node, double value, std::size_t arg, double move, const Values& values) const {
  const double center = number(values, node.args[arg]);
  if (move == 0 || !std::isfinite(center)) return 0;
  const bool of_integer = program_.nodes()[node.args[arg]].type == Type::kI32;
  std::array<ir::Scalar<double>, kMaxArgs> args;
  for (std::size_t i = 0; i < std::min<std::size_t>(node.arg_count, kMaxArgs); ++i) {
    args[i] = values.scalar(node.args[i]);
  }
  double largest = 0;
  for (const double moved : {center - move, center + move}) {
    constexpr double kLeast = std::numeric_limits<std::int32_t>::min(),
                     kMost = std::numeric_limits<std::int32_t>::max();
    if (of_integer)
      args[arg].i = static_cast<std::int32_t>(std::clamp(moved, kLeast, kMost));
    else
      args[arg].f = moved;
    const auto result =
        ir::eval_op<double>(node, program_.nodes()[node.args[0]].type, std::span(args).first(node.arg_count));
    const double change = std::abs((node.type == Type::kI32 ? result.i : result.f) - value);
    largest = change > largest || std::isnan(change) ? change : largest;
    if (std::isnan(change)) break;
  }
  return largest;
}

}  // namespace scoremod::checking
