#include "problem/canonical_problem.hpp"

#include "problem/canonical_writer.hpp"

namespace scoremod::problem {

Bytes canonical_bytes(const AttentionProblem& problem) {
  ProblemWriter writer;
  visit_members(problem, writer);
  return writer.out.written();
}

}  // namespace scoremod::problem
