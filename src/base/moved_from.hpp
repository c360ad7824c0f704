#pragma once

#include <memory>

#include "base/fail.hpp"

namespace scoremod {

/// Returns the contents of a movable object. Throws if it was moved from and holds nothing. kind: the object's, such as
/// "Attention".
template <class State>
State& held_by(const std::unique_ptr<State>& state, const char* kind) {
  if (state == nullptr) {
    fail_argument(kind, ": expected one that holds something, found one that was moved from; ",
                  "call the object that it was moved to");
  }
  return *state;
}

}  // namespace scoremod
