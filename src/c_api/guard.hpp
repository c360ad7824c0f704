#pragma once

#include <initializer_list>
#include <string_view>

#include "scoremod/c_api.h"

#include "base/fail.hpp"

namespace scoremod::c_api {

/// The parts joined, as a copy that the caller owns and frees with scoremod_text_free; null when there is no memory for
/// it.
char* copy_text(std::initializer_list<std::string_view> parts) noexcept;

/// Hands a text to the caller, as copy_text does. Throws std::bad_alloc.
void give(std::string_view text, char** destination);

/// The status of the exception in flight; *message (if wanted) becomes its text. Call it in a catch block only.
scoremod_status status_of_current_exception(char** message) noexcept;

/// Throws the caller's mistake when a pointer is null; `name` is that of the argument.
template <class Value>
void require(Value* pointer, const char* name) {
  if (pointer == nullptr) fail_argument(name, ": expected a pointer, found NULL");
}

/// Runs the body of one function of the C interface, so that no exception leaves it.
template <class Body>
scoremod_status guard(char** message, const Body& body) noexcept {
  if (message != nullptr) *message = nullptr;
  try {
    body();
    return SCOREMOD_OK;
  } catch (...) {
    return status_of_current_exception(message);
  }
}

}  // namespace scoremod::c_api
