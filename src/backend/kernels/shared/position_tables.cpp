#include "backend/kernels/shared/position_tables.hpp"

#include <algorithm>

#include "analysis/dependence.hpp"
#include "analysis/differences.hpp"
#include "backend/cuda/kernel_text.hpp"
#include "backend/kernels/shared/node_costs.hpp"
#include "backend/kernels/text/program_text.hpp"
#include "backend/program_structure.hpp"
#include "base/canonical_bytes.hpp"
#include "base/fail.hpp"
#include "ir/builder.hpp"

namespace scoremod::backend::kernels {
namespace {

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
