#include "backend/cpu/structure_programs.hpp"

#include <array>
#include <cstddef>

namespace scoremod::backend::cpu {
namespace {

using compiler::CompiledProblem;

/// One byte, by which values of one type are told apart.
enum class Of : unsigned char { kForward, kBackward };

template <class Value>
std::shared_ptr<const Value> made_of(const CompiledProblem& problem, Of program,
                                     Value (*make)(const CompiledProblem&)) {
  const auto& derived = problem.derived.values();
  if (derived == nullptr) return std::make_shared<const Value>(make(problem));
  return derived->get<Value>(std::array{static_cast<std::byte>(program)}, [&] { return make(problem); });
}

}  // namespace

std::shared_ptr<const VectorProgram> forward_program(const CompiledProblem& problem) {
  return made_of<VectorProgram>(problem, Of::kForward,
                                [](const CompiledProblem& p) { return vectorize(p.forward.program); });
}

std::shared_ptr<const VectorProgram> backward_program(const CompiledProblem& problem) {
  return made_of<VectorProgram>(problem, Of::kBackward,
                                [](const CompiledProblem& p) { return vectorize(p.backward->program); });
}

std::shared_ptr<const masks::TileMaskAnalyzer> mask_analyzer(const CompiledProblem& problem) {
  return made_of<masks::TileMaskAnalyzer>(
      problem, Of::kForward, [](const CompiledProblem& p) { return masks::TileMaskAnalyzer(p.forward.program); });
}

CompiledProblem kept_copy(const CompiledProblem& problem) {
  CompiledProblem copy = problem;
  copy.derived.share(problem.derived);
  return copy;
}

}  // namespace scoremod::backend::cpu
