#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "analysis/dependence.hpp"
#include "analysis/keep_nodes.hpp"
#include "backend/cuda/text/kernel_text.hpp"
#include "backend/cuda/text/program_source.hpp"
#include "backend/kernels/shared/tiled_variant.hpp"
#include "backend/of_structure.hpp"
#include "base/fail.hpp"
#include "ir/builder.hpp"
#include "ir/op_table.hpp"
#include "problem/implied_operands.hpp"
#include "problem/tensor_view.hpp"

namespace scoremod::backend::kernels {
namespace {

using cuda::ProgramSource;
using masks::MaskKind;

/// Whether the term is the end of a varlen sequence, as problem::with_lengths_in_mask() writes it. Kernels know that
/// end from the offsets, so that no kernel has to find it for each tile.
bool ends_sequence(const AttentionProblem& p, const Program& program, const masks::MaskTerm& term) {
  const bool of_queries = term.axis == Axis::kQuery;
  if (!(of_queries ? p.tokens_q : p.tokens_kv) || p.index_offsets) return false;
  if (term.kind != MaskKind::kPadding || term.from_start || term.bound.node == kNoNode || term.bound.offset != 0)
    return false;
  const auto operand =
      problem::operand_number(program, of_queries ? problem::kOffsetsOfQueries : problem::kOffsetsOfKeys);
  const auto node = [&](NodeId id) -> const Node& { return program.nodes()[id]; };
  const auto reads_offsets = [&](const Node& read) { return read.op == Op::kGather && read.payload == operand; };
  const Node& length = node(term.bound.node);
  if (length.op != Op::kSub) return false;
  const Node &end = node(length.args[0]), &first = node(length.args[1]);
  if (!reads_offsets(end) || !reads_offsets(first) || node(first.args[0]).op != Op::kBatchIdx) return false;
  const Node& next = node(end.args[0]);
  const auto is_one = [&](const Node& x) { return x.op == Op::kConstant && x.type == Type::kI32 && x.payload == 1; };
  const auto adds = [&](NodeId x, NodeId y) { return node(x).op == Op::kBatchIdx && is_one(node(y)); };
  return next.op == Op::kAdd && (adds(next.args[0], next.args[1]) || adds(next.args[1], next.args[0]));
}

/// The conditions that a mask joins by AND.
void collect_conditions(const Program& program, NodeId id, std::vector<NodeId>& conditions) {
  const Node& node = program.nodes()[id];
  if (node.op != Op::kAnd) return conditions.push_back(id);
  collect_conditions(program, node.args[0], conditions);
  collect_conditions(program, node.args[1], conditions);
}

/// Whether an integer is a query's index plus something that does not vary with it. Modulo 2^32 it then grows by one
/// from query to query, and wraps at most once among a tile's.
bool follows_query(const Program& program, const std::vector<analysis::Dependence>& on, NodeId id) {
  const Node& node = program.nodes()[id];
  if (node.op == Op::kQueryIdx) return true;
  const auto is_constant = [&](NodeId x) { return !on[x].on(Axis::kQuery) && !on[x].score; };
  if (node.type != Type::kI32 || (node.op != Op::kAdd && node.op != Op::kSub)) return false;
  const auto [x, y] = std::pair(node.args[0], node.args[1]);
  if (is_constant(y)) return follows_query(program, on, x);
  return node.op == Op::kAdd && is_constant(x) && follows_query(program, on, y);
}

/// The bound of a condition that keeps the keys up to it, or below it. The other side is the key's index itself, which
/// is far from where integers wrap.
std::optional<NodeId> bound_of_keys(const Program& program, NodeId id) {
  const Node& node = program.nodes()[id];
  const bool is_upper = node.op == Op::kLe || node.op == Op::kLt, is_lower = node.op == Op::kGe || node.op == Op::kGt;
  if (!is_upper && !is_lower) return std::nullopt;
  const NodeId key = node.args[is_upper ? 0 : 1], bound = node.args[is_upper ? 1 : 0];
  if (program.nodes()[key].op != Op::kKeyIdx) return std::nullopt;
  return bound;
}

/// Whether all conditions are of a key and its batch and head alone, or keep keys up to a diagonal.
bool grows_with_query(const Program& program, const std::vector<analysis::Dependence>& on,
                      std::span<const NodeId> conditions) {
  return std::ranges::all_of(conditions, [&](NodeId id) {
    if (!on[id].on(Axis::kQuery)) return !on[id].score;
    const auto bound = bound_of_keys(program, id);
    return bound && follows_query(program, on, *bound);
  });
}

/// Whether all conditions of a mask that grows_with_query() keep keys up to something that does not vary with them.
bool keeps_prefix(const Program& program, const std::vector<analysis::Dependence>& on,
                  std::span<const NodeId> conditions) {
  return std::ranges::all_of(conditions, [&](NodeId id) {
    const auto bound = bound_of_keys(program, id);
    return bound && !on[*bound].on(Axis::kKey);
  });
}

/// The knowledge of a direction that has a mask.
MaskKnowledge find_knowledge(const compiler::CompiledProblem& problem, Direction direction) {
  const Program& program = program_of(problem, direction);
  const masks::MaskClass& mask = direction == Direction::kForward ? problem.forward.mask : problem.backward->mask;
  MaskKnowledge knowledge;
  const auto is_end = [&](const masks::MaskTerm& term) { return ends_sequence(problem.problem, program, term); };
  if (std::ranges::all_of(mask.terms, is_end)) return knowledge;
  const std::vector<analysis::Dependence> on = analysis::dependences(program);
  knowledge.kind = on[program.keep()].score ? MaskKnowledge::Kind::kScore : MaskKnowledge::Kind::kList;
  if (knowledge.kind == MaskKnowledge::Kind::kList) {
    knowledge.terms = {program.keep()};
    std::vector<NodeId> conditions;
    collect_conditions(program, program.keep(), conditions);
    // Kernels that ask leave out queries beyond a varlen sequence's last.
    std::erase_if(conditions, [&](NodeId id) {
      return std::ranges::any_of(mask.terms, [&](const masks::MaskTerm& term) {
        return term.node == id && term.axis == Axis::kQuery && is_end(term);
      });
    });
    knowledge.grows_with_query = grows_with_query(program, on, conditions);
    knowledge.keeps_prefix = knowledge.grows_with_query && keeps_prefix(program, on, conditions);
  } else {
    for (const masks::MaskTerm& term : mask.terms)
      if (!on[term.node].score) knowledge.terms.push_back(term.node);
  }
  for (const NodeId term : knowledge.terms) {
    knowledge.varies_with_batch = knowledge.varies_with_batch || on[term].on(Axis::kBatch);
    knowledge.varies_with_head = knowledge.varies_with_head || on[term].on(Axis::kHead);
    knowledge.varies_with_query = knowledge.varies_with_query || on[term].on(Axis::kQuery);
  }
  knowledge.same_in_every_call = !problem.problem.index_offsets && !analysis::keep_reads_operands(program);
  return knowledge;
}

/// Masks with more nodes get no intervals, which would take the compiler longer than they save.
constexpr std::size_t kMaxNodes = 160;

/// The functions of shared/block_mask.cuh, by what they take and give; null where a result may be anything.
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

MaskKnowledge mask_knowledge(const compiler::CompiledProblem& problem, Direction direction) {
  if (program_of(problem, direction).keep() == kNoNode) return {};
  return *of_structure<MaskKnowledge>(problem, direction, [&] { return find_knowledge(problem, direction); });
}

std::string mask_ranges_function(const AttentionProblem& problem, const Program& program,
                                 std::span<const NodeId> terms) {
  const std::string statements = MaskRanges(problem, program).statements(terms);
  std::string keep = statements.empty() ? "any_truth()" : "truth_point(true)";
  if (!statements.empty()) {
    for (const NodeId term : terms) keep = concat("truth_and(", keep, ", ", ProgramSource::variable(term), ")");
  }
  return cuda::fill(cuda::part(cuda::file_text("backend/kernels/shared/block_mask.cuh"), "mask_over"),
                    {{"statements", statements}, {"keep", keep}});
}

}  // namespace scoremod::backend::kernels
