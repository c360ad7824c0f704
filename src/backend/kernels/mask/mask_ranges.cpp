#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "backend/cuda/text/kernel_text.hpp"
#include "backend/cuda/text/program_source.hpp"
#include "backend/kernels/mask/mask.hpp"
#include "base/fail.hpp"
#include "ir/builder.hpp"
#include "ir/op_table.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::kernels {
namespace {

using cuda::ProgramSource;

/// Masks with more nodes get no intervals, which would take the compiler longer than they save.
constexpr std::size_t kMaxNodes = 160;

/// The functions of mask/block_mask.cuh, by what they take and give; null where a result may be anything.
const char* int_function(Op op) {
  switch (op) {
    case Op::kAdd: return "int_add";
    case Op::kSub: return "int_sub";
    case Op::kMul: return "int_mul";
    case Op::kFloorDiv: return "int_floor_div";
    case Op::kMod: return "int_mod";
    case Op::kNeg: return "int_neg";
    case Op::kAbs: return "int_abs";
    case Op::kSign: return "sign_range";
    case Op::kMin: return "min_range";
    case Op::kMax: return "max_range";
    default: return nullptr;
  }
}

const char* float_function(Op op) {
  switch (op) {
    case Op::kAdd: return "float_add";
    case Op::kSub: return "float_sub";
    case Op::kMul: return "float_mul";
    case Op::kDiv: return "float_div";
    case Op::kNeg: return "negated";
    case Op::kAbs: return "float_abs";
    case Op::kSign: return "sign_range";
    case Op::kMin: return "min_range";
    case Op::kMax: return "max_range";
    case Op::kFloor: return "float_floor";
    case Op::kCeil: return "float_ceil";
    case Op::kRound: return "float_round";
    case Op::kRelu: return "float_relu";
    default: return nullptr;
  }
}

const char* truth_function(Op op) {
  switch (op) {
    case Op::kAnd: return "truth_and";
    case Op::kOr: return "truth_or";
    case Op::kXor: return "truth_xor";
    case Op::kNot: return "truth_not";
    case Op::kEq: return "truth_eq";
    case Op::kNe: return "truth_ne";
    case Op::kLt: return "truth_lt";
    case Op::kLe: return "truth_le";
    case Op::kGt: return "truth_gt";
    case Op::kGe: return "truth_ge";
    default: return nullptr;
  }
}

std::string anything(Type type) {
  return type == Type::kF32 ? "any_float()" : type == Type::kI32 ? "any_int()" : "any_truth()";
}

class MaskRanges {
 public:
  MaskRanges(const AttentionProblem& problem, const Program& program)
      : problem_(problem), program_(program), arguments_(cuda::argument_constants(program)) {}

  /// Definitions of what these nodes need.
  std::string statements(std::span<const NodeId> terms) const {
    const std::vector<bool> needed = needed_by(terms);
    if (std::ranges::count(needed, true) > static_cast<std::ptrdiff_t>(kMaxNodes)) return {};
    std::string text;
    for (NodeId id = 0; id < needed.size(); ++id)
      if (needed[id]) text += statement(id);
    return text;
  }

 private:
  std::vector<bool> needed_by(std::span<const NodeId> terms) const {
    std::vector<bool> needed(program_.nodes().size());
    for (const NodeId term : terms) needed[term] = true;
    for (std::size_t id = needed.size(); id-- > 0;) {
      if (!needed[id]) continue;
      for (const NodeId arg : ir::args_of(program_.nodes()[id])) needed[arg] = true;
    }
    return needed;
  }

  std::string statement(NodeId id) const {
    const Node& node = program_.nodes()[id];
    const std::string name = ProgramSource::variable(id);
    if (node.op == Op::kOperand || node.op == Op::kGather) return read_operand(node, name);
    return concat(node.type == Type::kBool ? "const Truth " : "const Range ", name, " = ", expression(id), ";\n");
  }

  std::string expression(NodeId id) const {
    const Node& node = program_.nodes()[id];
    const auto arg = [&](std::size_t i) { return ProgramSource::variable(node.args[i]); };
    switch (node.op) {
      case Op::kBatchIdx: return "index_range(b, b, offset_b)";
      case Op::kHeadIdx: return "index_range(h, h, offset_h)";
      case Op::kQueryIdx: return "index_range(first_q, last_q, offset_q)";
      case Op::kKeyIdx: return "index_range(first_kv, last_kv, offset_kv)";
      case Op::kConstant: return constant(id);
      case Op::kSelect:
        return concat(node.type == Type::kBool ? "truth_select(" : "range_select(", arg(0), ", ", arg(1), ", ", arg(2),
                      ")");
      case Op::kToF32:
      case Op::kToI32:
      case Op::kToBool: return cast(node, arg(0));
      case Op::kTanh:
      case Op::kErf: return concat("float_within(", arg(0), ", -1.000001, 1.000001)");
      case Op::kSigmoid: return concat("float_within(", arg(0), ", -0.000001, 1.000001)");
      default: break;
    }
    const bool compares_bools = node.type == Type::kBool && node.arg_count > 0 && node.op >= Op::kEq &&
                                node.op <= Op::kGe && type_of(node.args[0]) == Type::kBool;
    const char* const function = node.type == Type::kBool  ? truth_function(node.op)
                                 : node.type == Type::kI32 ? int_function(node.op)
                                                           : float_function(node.op);
    if (function == nullptr || node.arg_count == 0) return anything(node.type);
    const auto taken = [&](std::size_t i) { return compares_bools ? concat("range_of_truth(", arg(i), ")") : arg(i); };
    return concat(function, "(", taken(0), node.arg_count > 1 ? ", " + taken(1) : "", ")");
  }

  Type type_of(NodeId id) const { return program_.nodes()[id].type; }

  std::string constant(NodeId id) const {
    const Node& node = program_.nodes()[id];
    const auto argument = std::ranges::find(arguments_, id);
    if (argument != arguments_.end())
      return concat("point_range(p.call.constants[", argument - arguments_.begin(), "])");
    switch (node.type) {
      case Type::kF32: return concat("float_point_range(", cuda::float_literal(ir::constant_f32(node)), ")");
      case Type::kI32: return concat("point_range(", ir::constant_i32(node), ".0)");
      case Type::kBool: return ir::constant_bool(node) ? "truth_point(true)" : "truth_point(false)";
    }
    fail_bug("no such type");
  }

  std::string cast(const Node& node, const std::string& x) const {
    const Type from = type_of(node.args[0]);
    if (from == node.type) return x;
    if (node.type == Type::kBool) return concat("truth_of(", x, ")");
    if (from == Type::kBool) return concat("range_of_truth(", x, ")");
    return concat(node.type == Type::kF32 ? "float_of_int(" : "int_of_float(", x, ")");
  }

  std::string read_operand(const Node& node, const std::string& name) const {
    static constexpr std::array<const char*, kAxisCount> kFirst{"b", "h", "first_q", "first_kv"},
        kLast{"b", "h", "last_q", "last_kv"};
    const OperandDecl& decl = program_.operands()[node.payload];
    const std::string operand = concat("p.operands[", node.payload, "]"), entries = concat("entries_", name);
    std::string text = concat("Entries ", entries, "{{0, 0, 0, 0}, {1, 1, 1, 1}};\n");
    std::size_t dimension = 0;
    if (decl.is_table()) {
      for (const NodeId at : ir::args_of(node))
        text +=
            concat("read_at(", entries, ", ", operand, ", ", dimension++, ", ", ProgramSource::variable(at), ");\n");
    } else {
      for (std::size_t axis = 0; axis < kAxisCount; ++axis) {
        if (!decl.axes[axis]) continue;
        text += concat("read_along(", entries, ", ", operand, ", ", dimension++, ", ", kFirst[axis], ", ", kLast[axis],
                       ");\n");
      }
    }
    const char* const kind = node.type == Type::kF32 ? "float" : node.type == Type::kI32 ? "int" : "truth";
    return concat(text, node.type == Type::kBool ? "const Truth " : "const Range ", name, " = ", kind, "_entries(",
                  operand, ", ", entries, ", ", cuda::loader(problem::spec_of(problem_, node.payload).dtype), ");\n");
  }

  const AttentionProblem& problem_;
  const Program& program_;
  std::vector<NodeId> arguments_;
};

}  // namespace

std::string mask_ranges_function(const AttentionProblem& problem, const Program& program,
                                 std::span<const NodeId> terms) {
  const std::string statements = MaskRanges(problem, program).statements(terms);
  std::string keep = statements.empty() ? "any_truth()" : "truth_point(true)";
  if (!statements.empty()) {
    for (const NodeId term : terms) keep = concat("truth_and(", keep, ", ", ProgramSource::variable(term), ")");
  }
  return cuda::fill(cuda::part(cuda::file_text("backend/kernels/mask/block_mask.cuh"), "mask_over"),
                    {{"statements", statements}, {"keep", keep}});
}

}  // namespace scoremod::backend::kernels
