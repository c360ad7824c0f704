#pragma once

#include <stdexcept>
#include <string>

#include "scoremod/export.hpp"

namespace scoremod {

/// The four kinds of failure; they are never mixed.
enum class ErrorCode {
  kInvalidArgument,  ///< the caller's mistake: the message says what was expected, what was found and what to change
  kUnsupported,      ///< a valid request that no backend can run; the message holds each backend's reasons
  kEnvironment,      ///< the machine: memory, files, drivers; the system's own text is kept
  kBug,              ///< an invariant of scoremod itself broke; please report it
};

/// The printable name of a code: "invalid argument", "unsupported", "environment" or "bug".
SCOREMOD_API const char* to_string(ErrorCode code);

/// The one exception type that scoremod throws.
class SCOREMOD_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message);
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace scoremod
