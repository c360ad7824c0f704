#pragma once

#include <vector>

#include "backend/backend.hpp"

namespace scoremod::test {

/// A backend that has nothing against any problem.
class WillingEngine : public backend::Backend {
 public:
  std::vector<UnsupportedReason> objections(const compiler::CompiledProblem&, const backend::Task&,
                                            const backend::Target*) const override {
    return {};
  }
};

}  // namespace scoremod::test
