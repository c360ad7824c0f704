#include "backend/support_of.hpp"

#include <utility>

#include "analysis/finite_mask.hpp"
#include "base/fail.hpp"

namespace scoremod::backend {

Support support_of(const Backend& backend, const compiler::CompiledProblem& problem) {
  Verdict verdict = backend.support(problem);
  const auto mask = analysis::finite_mask(problem.forward.program);
  if (verdict.supported && problem.problem.backward && backend.backward_reads_lse() && mask) {
    verdict.notes.push_back(
        concat("the value is chosen to be ", *mask,
               " for some scores: in a row that has no other, gradients are wrong, because this backend's backward "
               "starts from a float32 LSE, which of that size has no digit of the number of keys; to mask, use keep, "
               "or -inf; the cpu and the reference backend are right there too"));
  }
  return {backend.name(), verdict.supported, std::move(verdict.reasons), std::move(verdict.notes),
          backend.memory().kind()};
}

}  // namespace scoremod::backend
