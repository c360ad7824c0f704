#pragma once

#include "scoremod/error.hpp"

#include "base/concat.hpp"

namespace scoremod {

/// Throws the caller's mistake. State what was expected, what was found and what to change.
template <class... Parts>
[[noreturn]] void fail_argument(const Parts&... parts) {
  throw Error(ErrorCode::kInvalidArgument, concat(parts...));
}

template <class... Parts>
[[noreturn]] void fail_unsupported(const Parts&... parts) {
  throw Error(ErrorCode::kUnsupported, concat(parts...));
}

template <class... Parts>
[[noreturn]] void fail_environment(const Parts&... parts) {
  throw Error(ErrorCode::kEnvironment, concat(parts...));
}

/// Throws when an invariant of scoremod itself does not hold.
template <class... Parts>
[[noreturn]] void fail_bug(const Parts&... parts) {
  throw Error(ErrorCode::kBug, concat("internal error, please report it: ", parts...));
}

}  // namespace scoremod
