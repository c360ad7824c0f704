#include "c_api/guard.hpp"

#include <cstdlib>
#include <cstring>
#include <new>

#include "scoremod/error.hpp"

#include "base/current_exception.hpp"

namespace scoremod::c_api {
namespace {

scoremod_status status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return SCOREMOD_INVALID_ARGUMENT;
    case ErrorCode::kUnsupported: return SCOREMOD_UNSUPPORTED;
    case ErrorCode::kEnvironment: return SCOREMOD_ENVIRONMENT;
    case ErrorCode::kBug: return SCOREMOD_BUG;
  }
  return SCOREMOD_BUG;
}

}  // namespace

char* copy_text(std::initializer_list<std::string_view> parts) noexcept {
  std::size_t size = 1;
  for (const std::string_view part : parts) size += part.size();
  // malloc, not new: memory for C must not depend on a C++ runtime, and here there is nobody to catch bad_alloc.
  auto* copy = static_cast<char*>(std::malloc(size));
  if (copy == nullptr) return nullptr;
  char* end = copy;
  for (const std::string_view part : parts) {
    if (!part.empty()) std::memcpy(end, part.data(), part.size());
    end += part.size();
  }
  *end = '\0';
  return copy;
}

void give(std::string_view text, char** destination) {
  *destination = copy_text({text});
  if (*destination == nullptr) throw std::bad_alloc();
}

scoremod_status status_of_current_exception(char** message) noexcept {
  return answer_current_exception([&](const Failure& failure, std::initializer_list<std::string_view> parts) {
    if (message != nullptr) *message = copy_text(parts);
    return failure.is_context_lost ? SCOREMOD_CONTEXT_LOST : status_of(failure.code);
  });
}

}  // namespace scoremod::c_api
