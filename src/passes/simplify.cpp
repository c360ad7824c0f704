#include "passes/simplify.hpp"

#include "passes/rewriter.hpp"

namespace scoremod::passes {

Program simplify(const Program& program, const RuleObserver& observer) {
  Rewriter rewriter(program.operands(), observer);
  std::vector<NodeId> simplified;
  simplified.reserve(program.nodes().size());
  std::array<NodeId, kMaxArgs> args{};
  for (const Node& node : program.nodes()) {
    for (std::size_t i = 0; i < node.arg_count; ++i) args[i] = simplified[node.args[i]];
    simplified.push_back(rewriter.remake(node, std::span(args).first(node.arg_count)));
  }
  std::vector<Root> roots = program.roots();
  for (Root& root : roots) {
    root.node = simplified[root.node];
    for (NodeId& index : root.indices) {
      if (index != kNoNode) index = simplified[index];
    }
  }
  return rewriter.finish(roots);
}

Program simplify(const Program& program) { return simplify(program, {}); }

}  // namespace scoremod::passes
