#pragma once

#include <string_view>

namespace scoremod {

/// The value of an environment variable; empty where it is not set. Until the environment is changed.
std::string_view environment_variable(const char* name);

/// One that is 0 or 1; `otherwise` where it is not set or empty. Throws Error(kInvalidArgument) for another value.
bool environment_flag(const char* name, bool otherwise);

}  // namespace scoremod
