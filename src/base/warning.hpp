#pragma once

#include <functional>
#include <string>

#include "base/fail.hpp"

namespace scoremod {

/// Takes a text without its line end. Called by any thread, and by several at once.
using WarningHandler = std::function<void(const std::string& text)>;

/// Sets the handler of warnings and returns the previous one. An empty handler, the default, writes "scoremod: warning:
/// TEXT" to the standard error.
WarningHandler set_warning_handler(WarningHandler handler);

void emit_warning(const std::string& text);

/// Tells of something that scoremod copes with and the user may want to mend. Whoever warns sees to it that it is once.
template <class... Parts>
void warn(const Parts&... parts) {
  emit_warning(concat(parts...));
}

}  // namespace scoremod
