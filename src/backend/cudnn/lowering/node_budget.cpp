#include "backend/cudnn/lowering/node_budget.hpp"

#include <algorithm>
#include <functional>
#include <optional>

#include "backend/cudnn/graph/engine.hpp"
#include "backend/cudnn/lowering/lower_program.hpp"
#include "backend/cudnn/lowering/operand_pattern.hpp"
#include "base/fail.hpp"
#include "ir/builder.hpp"

namespace scoremod::backend::cudnn {
namespace {

using analysis::Dependence;

/// The frontend's band node is several nodes of cuDNN's graph: two indices, a shift, a comparison and a select.
constexpr int kNodesOfBand = 5;

/// The operations of a graph that attention itself takes, if a graph holds 50. In forward a chain of 40 nodes builds
/// and one of 41 doesn't. In backward 31 build with as many KV heads as query heads, and 30 with fewer. The backward
/// has one more, because no chain stands for all shapes of a graph.
constexpr int kForwardOperations = 10;
constexpr int kBackwardOperations = 20;
constexpr int kGroupedBackwardOperations = 21;

bool spans_scores(const Dependence& dependence) { return dependence.on(Axis::kQuery) && dependence.on(Axis::kKey); }

/// The search for the cheapest operands skips programs with more needed nodes than this. Every largest expression that
/// does not depend on the score is then computed.
constexpr std::size_t kMaxSearchedNodes = 256;

struct Attempt {
  LoweredModifier lowered;
  std::vector<bool> computed;
  std::vector<NodeId> needed;  ///< the program's nodes that it wrote or bound
  int nodes = 0;
  double bytes = 0;  ///< of all computed operands
};

double bytes_of(const AttentionProblem& problem, const ComputedOperand& operand) {
  return sizeof(float) * usual_elements(operand.axes, {problem.batch, problem.heads_q, problem.seq_q, problem.seq_kv});
}

int row_vector_uses(const ModifierGraph& graph) {
  int uses = 0;
  for (const ModifierNode& node : graph.nodes) {
    uses += static_cast<int>(std::ranges::count_if(node.inputs, [&](const Ref& input) {
      return input.kind == Ref::Kind::kTensor && is_row_vector(graph.tensors[input.index]);
    }));
  }
  return uses;
}

class Search {
 public:
  Search(const compiler::CompiledProblem& problem, const LoweringOptions& options)
      : problem_(problem),
        options_(options),
        program_(program_of(problem, options)),
        dependence_(analysis::dependences(program_)),
        budget_(options.node_budget > 0 ? options.node_budget : node_budget(problem.problem, options.backward)) {}

  LoweredModifier run() {
    std::vector<bool> computed = operand_expressions(program_, dependence_);
    if (program_.nodes().size() > kMaxSearchedNodes) add_all(computed);
    Attempt best = attempt(computed);
    reduce(best, std::min(kFewNodes, budget_), [this](NodeId id) { return !spans_scores(dependence_[id]); });
    reduce(best, budget_, [](NodeId) { return true; });
    if (best.nodes <= budget_) return best.lowered;
    throw NoPattern{concat("the part of the program that depends on the score needs ", best.nodes,
                           " cuDNN nodes; a graph holds ", budget_, options_.backward ? " in backward" : " in forward",
                           " of this problem; simplify it")};
  }

 private:
  /// Computes more of the `allowed` nodes beforehand, until the rest has at most `nodes` or nothing helps.
  void reduce(Attempt& best, int nodes, const std::function<bool(NodeId)>& allowed) const {
    while (best.nodes > nodes) {
      std::optional<Attempt> next = cheapest_step(best, allowed);
      if (!next) return;
      best = std::move(*next);
    }
  }

  /// A candidate does not depend on the score and costs a node.
  bool is_candidate(NodeId id) const {
    const Op op = program_.nodes()[id].op;
    return !dependence_[id].score && op != Op::kConstant && op != Op::kOperand;
  }

  void add_all(std::vector<bool>& computed) const {
    for (NodeId id = 0; id < program_.nodes().size(); ++id) {
      if (is_candidate(id)) computed[id] = true;
    }
  }

  /// cuDNN refuses modifiers that read row vectors too often (9.19: in backward). Then each is read once or, as that
  /// takes nodes, none is there.
  Attempt attempt(const std::vector<bool>& computed) const {
    Attempt out = attempt(computed, RowVectors::kDirect);
    const int uses = row_vector_uses(out.lowered.graph);
    if (uses == 0) return out;
    if (!options_.allowed(row_vector_pattern(uses))) {
      out = attempt(computed, RowVectors::kLifted);
      if (out.nodes > budget_) return attempt(computed, RowVectors::kNone);
    }
    const int used = row_vector_uses(out.lowered.graph);
    if (used > 0) out.lowered.patterns.insert(row_vector_pattern(used));
    return out;
  }

  Attempt attempt(std::vector<bool> computed, RowVectors row_vectors) const {
    Attempt out;
    out.computed = std::move(computed);
    while (true) {
      const std::vector<bool> before = out.computed;
      LoweredModifier lowered;
      ProgramLowering lowering(problem_, options_, dependence_, row_vectors, out.computed, lowered);
      lowering.run();
      // Each round adds nodes, or it is the last.
      if (out.computed != before) continue;
      for (NodeId id = 0; id < program_.nodes().size(); ++id) {
        if (lowering.is_needed(id)) out.needed.push_back(id);
      }
      out.nodes = node_count(lowered.graph);
      for (const ComputedOperand& operand : lowered.computed) out.bytes += bytes_of(problem_.problem, operand);
      out.lowered = std::move(lowered);
      return out;
    }
  }

  /// The attempt with one more computed expression that costs the fewest bytes for each node that it saves; with equal
  /// costs the one that saves more, then the first. Empty if none saves any.
  std::optional<Attempt> cheapest_step(const Attempt& from, const std::function<bool(NodeId)>& allowed) const {
    std::optional<Attempt> best;
    double best_cost = 0;
    for (const NodeId id : from.needed) {
      if (from.computed[id] || !is_candidate(id) || !allowed(id)) continue;
      std::optional<Attempt> next = attempt_with(from, id);
      if (!next || next->nodes >= from.nodes) continue;
      const double cost = std::max(next->bytes - from.bytes, 0.0) / (from.nodes - next->nodes);
      if (best && (cost > best_cost || (cost == best_cost && next->nodes >= best->nodes))) continue;
      best = std::move(next);
      best_cost = cost;
    }
    return best;
  }

  std::optional<Attempt> attempt_with(const Attempt& from, NodeId id) const {
    std::vector<bool> computed = from.computed;
    computed[id] = true;
    try {
      return attempt(computed);
    } catch (const NoPattern&) {
      return std::nullopt;
    }
  }

  const compiler::CompiledProblem& problem_;
  const LoweringOptions& options_;
  const Program& program_;
  const std::vector<Dependence> dependence_;
  const int budget_;
};

}  // namespace

int node_count(const ModifierGraph& graph) {
  int count = 0;
  for (const ModifierNode& node : graph.nodes) count += node.mode == Mode::kBand ? kNodesOfBand : 1;
  return count;
}

int node_budget(const AttentionProblem& problem, bool backward) {
  if (!backward) return max_operations() - kForwardOperations;
  return max_operations() - (problem.heads_q == problem.heads_kv ? kBackwardOperations : kGroupedBackwardOperations);
}

std::vector<bool> operand_expressions(const Program& program, const std::vector<Dependence>& dependence) {
  const std::vector<Node>& nodes = program.nodes();
  std::vector<bool> of_operands(nodes.size()), out(nodes.size());
  for (NodeId id = 0; id < nodes.size(); ++id) {
    const auto args = ir::args_of(nodes[id]);
    const bool is_index = nodes[id].op >= Op::kBatchIdx && nodes[id].op <= Op::kKeyIdx;
    of_operands[id] =
        !dependence[id].score && !is_index && std::ranges::all_of(args, [&](NodeId arg) { return of_operands[arg]; });
    out[id] = of_operands[id] && !args.empty() && !spans_scores(dependence[id]);
  }
  return out;
}

LoweredModifier lower_within_budget(const compiler::CompiledProblem& problem, const LoweringOptions& options) {
  return Search(problem, options).run();
}

}  // namespace scoremod::backend::cudnn
