#include "scoremod/error.hpp"

#include <algorithm>

namespace scoremod {
namespace {

/// Text after a NUL would be lost, because what() has no length, and neither has the text that C's callers get.
std::string without_nul(std::string text) {
  std::ranges::replace(text, '\0', '?');
  return text;
}

}  // namespace

const char* to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "invalid argument";
    case ErrorCode::kUnsupported: return "unsupported";
    case ErrorCode::kEnvironment: return "environment";
    case ErrorCode::kBug: return "bug";
  }
  return "unknown";
}

Error::Error(ErrorCode code, const std::string& message) : std::runtime_error(without_nul(message)), code_(code) {}

}  // namespace scoremod
