#include "base/environment.hpp"

#include <cstdlib>

#include "base/fail.hpp"

namespace scoremod {

std::string_view environment_variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool environment_flag(const char* name, bool otherwise) {
  const std::string_view value = environment_variable(name);
  if (value.empty()) return otherwise;
  if (value != "0" && value != "1") fail_argument(name, ": expected 0 or 1, found '", value, "'");
  return value == "1";
}

}  // namespace scoremod
