#include "backend/cpu/structure_programs.hpp"

#include "backend/of_structure.hpp"

namespace scoremod::backend::cpu {

using compiler::CompiledProblem;

std::shared_ptr<const VectorProgram> forward_program(const CompiledProblem& problem) {
  return of_structure<VectorProgram>(problem, Direction::kForward, [&] { return vectorize(problem.forward.program); });
}

std::shared_ptr<const VectorProgram> backward_program(const CompiledProblem& problem) {
  return of_structure<VectorProgram>(problem, Direction::kBackward,
                                     [&] { return vectorize(problem.backward->program); });
}

std::shared_ptr<const masks::TileMaskAnalyzer> mask_analyzer(const CompiledProblem& problem) {
  return of_structure<masks::TileMaskAnalyzer>(problem, Direction::kForward,
                                               [&] { return masks::TileMaskAnalyzer(problem.forward.program); });
}

CompiledProblem kept_copy(const CompiledProblem& problem) {
  CompiledProblem copy = problem;
  copy.derived.share(problem.derived);
  return copy;
}

}  // namespace scoremod::backend::cpu
