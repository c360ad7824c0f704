#include "backend/kernels/shared/node_costs.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "analysis/dependence.hpp"
#include "analysis/differences.hpp"
#include "analysis/keep_nodes.hpp"
#include "backend/cuda/text/kernel_text.hpp"
#include "backend/kernels/mask/mask.hpp"
#include "backend/kernels/text/kernel_source.hpp"
#include "backend/of_structure.hpp"
#include "backend/program_structure.hpp"
#include "base/canonical_bytes.hpp"
#include "base/fail.hpp"
#include "ir/builder.hpp"
#include "ir/op_table.hpp"

namespace scoremod::backend::kernels {
namespace {

/// The part of a node's cost that is left if it varies along one of queries and keys. The compiler then evaluates it
/// once for a thread's scores of one row or column.
constexpr double kAlongOneAxis = 0.15;
/// A read of a relative-position entry, which neighbouring scores of a thread share. If there is a table for each head,
/// L1 does not keep it from CTA to CTA. The times are an H200's.
constexpr double kReadDifference = 0.16, kReadDifferenceOfHead = 0.25;

/// A read of a tile that was copied ahead: half an access to shared memory, and a conversion. From the case "bias" of
/// bench/results/hopper_kernels.json.
constexpr double kReadCopied = 0.22;

// From bench/results/attention_kernels.json: what each program there takes longer than none.

double cost_of_read(const Node& node, const OperandDecl& decl) {
  if (node.op == Op::kGather) return 0.6;
  const auto along = [&](Axis axis) { return decl.axes[static_cast<std::size_t>(axis)]; };
  return along(Axis::kQuery) && along(Axis::kKey) ? 1.3 : 1.0;
}

/// A divisor by which a shift or a mask divides.
bool is_shift(const Node& divisor) {
  if (divisor.op != Op::kConstant || divisor.type != Type::kI32) return false;
  const std::int32_t value = ir::constant_i32(divisor);
  return value > 0 && std::has_single_bit(static_cast<std::uint32_t>(value));
}
constexpr double kShift = 0.15;

using cuda::ProgramSource;

/// The cost of a node and all its inputs that is worth a table, in the milliseconds of NodeCosts: more than a read
/// takes. A backward has few registers to spare for the reads. With its bias in a table ALiBi's took 3.69 ms on an
/// H200, and 3.41 without.
constexpr double kWorthATable = 0.15, kWorthATableOfADerivative = 0.5;

/// The cost of all nodes that are evaluated for each score. Nodes that vary along one of queries and keys, or neither,
/// are evaluated for a row or once.
double cost_of_all(const Program& program, const std::vector<analysis::Dependence>& dependences, NodeId root) {
  const std::vector<Node>& nodes = program.nodes();
  std::vector<bool> needed(nodes.size());
  needed[root] = true;
  double cost = 0;
  for (NodeId id = root + 1; id-- > 0;) {
    if (!needed[id]) continue;
    if (dependences[id].on(Axis::kQuery) && dependences[id].on(Axis::kKey)) cost += node_cost(nodes[id], program);
    for (const NodeId arg : ir::args_of(nodes[id])) needed[arg] = true;
  }
  return cost;
}

}  // namespace

double node_cost(const Node& node, const Program& program) {
  switch (node.op) {
    case Op::kOperand:
    case Op::kGather: return cost_of_read(node, program.operands()[node.payload]);
    case Op::kMod: return is_shift(program.nodes()[node.args[1]]) ? kShift : 0.5;
    case Op::kFloorDiv: return is_shift(program.nodes()[node.args[1]]) ? kShift : 0.8;
    case Op::kToF32: return 0.2;
    case Op::kExp:
    case Op::kExp2: return 0.3;
    case Op::kTanh: return 0.5;
    case Op::kSqrt:
    case Op::kRsqrt: return 0.8;
    case Op::kDiv: return program.nodes()[node.args[1]].op == Op::kConstant ? 0.2 : 1.15;
    case Op::kReciprocal:
    case Op::kLog: return 1.15;
    case Op::kGeluTanh: return 1.3;
    case Op::kExpm1:
    case Op::kLog1p: return 1.5;
    case Op::kSigmoid:
    case Op::kSilu: return 1.0;
    case Op::kSin:
    case Op::kCos:
    case Op::kAtan:
    case Op::kSoftplus: return 3.0;
    case Op::kErf:
    case Op::kErfc:
    case Op::kGelu: return 4.2;
    case Op::kAtan2:
    case Op::kPow: return 5.2;
    case Op::kTan: return 6.0;
    default: return ir::info(node.op).signature == ir::Signature::kLeaf ? 0 : 0.045;
  }
}

NodeCosts node_costs(const Program& program, bool evaluates_all, std::optional<std::uint32_t> loaded_bias) {
  const std::vector<bool> of_keep = analysis::keep_nodes(program);
  const std::vector<analysis::Dependence> dependences = analysis::dependences(program);
  std::vector<bool> of_value(program.nodes().size());
  for (const Root& root : program.roots()) {
    if (root.kind == RootKind::kValue || root.kind == RootKind::kScoreAdjoint) of_value[root.node] = true;
  }
  const PositionTables tables = evaluates_all ? PositionTables{} : position_tables(program);
  NodeCosts costs;
  for (NodeId id = static_cast<NodeId>(program.nodes().size()); id-- > 0;) {
    const Node& node = program.nodes()[id];
    if (of_value[id] && std::ranges::find(tables.nodes, id) != tables.nodes.end()) {
      costs.value += tables.by_head ? kReadDifferenceOfHead : kReadDifference;
      continue;
    }
    if (of_value[id]) {
      for (std::size_t i = 0; i < node.arg_count; ++i) of_value[node.args[i]] = true;
    }
    const analysis::Dependence& on = dependences[id];
    const int axes = on.on(Axis::kQuery) + on.on(Axis::kKey);
    const double evaluations = on.score || axes == 2 ? 1 : axes == 1 ? kAlongOneAxis : 0;
    const bool copied = node.op == Op::kOperand && node.payload == loaded_bias;
    const double cost = evaluations * (copied ? kReadCopied : node_cost(node, program));
    if (of_value[id])
      costs.value += cost;
    else if (of_keep[id])
      costs.keep += cost;
  }
  return costs;
}

std::int64_t PositionTables::entries(const AttentionProblem& problem, std::int64_t rows, std::int64_t keys) const {
  return (by_batch ? problem.batch : 1) * (by_head ? problem.heads_q : 1) * (rows + keys);
}

PositionTables position_tables(const Program& program) {
  const std::vector<Node>& nodes = program.nodes();
  const std::vector<bool> of_differences = analysis::of_differences(program);
  const std::vector<analysis::Dependence> dependences = analysis::dependences(program);
  std::vector<bool> needed(nodes.size());
  for (const Root& root : program.roots()) {
    if (root.kind != RootKind::kKeep) needed[root.node] = true;
  }
  const bool derivative =
      std::ranges::any_of(program.roots(), [](const Root& root) { return root.kind == RootKind::kScoreAdjoint; });
  const double worth = derivative ? kWorthATableOfADerivative : kWorthATable;
  PositionTables tables;
  for (NodeId id = static_cast<NodeId>(nodes.size()); id-- > 0;) {
    if (!needed[id]) continue;
    const analysis::Dependence& on = dependences[id];
    const bool varies = on.on(Axis::kQuery) && on.on(Axis::kKey);
    if (of_differences[id] && varies && nodes[id].type == Type::kF32) {
      if (tables.nodes.size() == kMaxPositionTables || cost_of_all(program, dependences, id) < worth) continue;
      tables.nodes.push_back(id);
      tables.by_batch = tables.by_batch || on.on(Axis::kBatch);
      tables.by_head = tables.by_head || on.on(Axis::kHead);
      continue;
    }
    for (const NodeId arg : ir::args_of(nodes[id])) needed[arg] = true;
  }
  return tables;
}

PositionTables position_tables(const compiler::CompiledProblem& problem, Direction direction) {
  return *of_structure<PositionTables>(problem, direction,
                                       [&] { return position_tables(program_of(problem, direction)); });
}

void read_tables(ProgramSource& source, const PositionTables& tables) {
  for (std::size_t i = 0; i < tables.nodes.size(); ++i)
    source.replace(tables.nodes[i], concat("difference_at<", i, ">(p, b, h, any_q, any_kv)"));
}

void fill_tables(Holes& holes, const AttentionProblem& problem, const Program& program, const PositionTables& tables) {
  if (tables.nodes.empty()) return holes.set("position_tables", "");
  holes.set("position_tables",
            cuda::fill(cuda::part(cuda::file_text("backend/kernels/shared/program.cuh"), "position_tables"),
                       {{"count", tables.nodes.size()},
                        {"by_batch", tables.by_batch ? "true" : "false"},
                        {"by_head", tables.by_head ? "true" : "false"}}));
  ProgramSource source(problem, program, cuda::OperandSizes::kArguments);
  const std::string statements = source.statements(tables.nodes);
  std::string values;
  for (const NodeId node : tables.nodes) values += concat(values.empty() ? "" : ", ", ProgramSource::variable(node));
  CanonicalWriter structure;
  write_structure(structure, program);
  structure.list(tables.nodes.size());
  for (const NodeId node : tables.nodes) structure.integer(node);
  holes.set_program("position_statements", with_operands(source, statements), structure.written());
  holes.set("position_values", values);
}

}  // namespace scoremod::backend::kernels
