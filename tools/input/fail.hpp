#pragma once

#include <sstream>
#include <string>

#include "scoremod/error.hpp"

namespace scoremod::input {

/// Throws an Error whose message is the parts, joined with operator<<.
template <class... Parts>
[[noreturn]] void fail(ErrorCode code, const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw Error(code, message.str());
}

}  // namespace scoremod::input
