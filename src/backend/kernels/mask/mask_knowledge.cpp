#include "backend/kernels/mask/mask_knowledge.hpp"

#include "analysis/dependence.hpp"
#include "analysis/keep_nodes.hpp"

namespace scoremod::backend::kernels {

const Program& program_of(const compiler::CompiledProblem& problem, Direction direction) {
  return direction == Direction::kForward ? problem.forward.program : problem.backward->program;
}

MaskKnowledge mask_knowledge(const compiler::CompiledProblem& problem, Direction direction) {
  const Program& program = program_of(problem, direction);
  const masks::MaskClass& mask = direction == Direction::kForward ? problem.forward.mask : problem.backward->mask;
  MaskKnowledge knowledge;
  if (mask.terms.empty() || program.keep() == kNoNode) return knowledge;
  const std::vector<analysis::Dependence> on = analysis::dependences(program);
  knowledge.kind = on[program.keep()].score ? MaskKnowledge::Kind::kScore : MaskKnowledge::Kind::kList;
  if (knowledge.kind == MaskKnowledge::Kind::kList) {
    knowledge.terms = {program.keep()};
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

}  // namespace scoremod::backend::kernels
