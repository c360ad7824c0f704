#include "analysis/keep_nodes.hpp"

#include "ir/builder.hpp"

namespace scoremod::analysis {

std::vector<bool> keep_nodes(const Program& program) {
  std::vector<bool> needed(program.nodes().size());
  if (program.keep() == kNoNode) return needed;
  needed[program.keep()] = true;
  for (NodeId id = program.keep() + 1; id-- > 0;) {
    if (!needed[id]) continue;
    for (const NodeId arg : ir::args_of(program.nodes()[id])) needed[arg] = true;
  }
  return needed;
}

}  // namespace scoremod::analysis
