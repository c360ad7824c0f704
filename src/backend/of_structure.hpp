#pragma once

#include <array>
#include <cstddef>
#include <memory>

#include "backend/plan.hpp"
#include "compiler/compiled_problem.hpp"

namespace scoremod::backend {

/// A value that follows from a direction of a problem and from no size. `make` makes it once for all sizes of the
/// structure, if the problem has derived values. Other values of its type may not follow from the same direction.
template <class Value, class Make>
std::shared_ptr<const Value> of_structure(const compiler::CompiledProblem& problem, Direction direction,
                                          const Make& make) {
  const auto& derived = problem.derived.values();
  if (derived == nullptr) return std::make_shared<const Value>(make());
  return derived->get<Value>(std::array{static_cast<std::byte>(direction)}, make);
}

}  // namespace scoremod::backend
