#pragma once

#include <string>

namespace scoremod::backend {

/// Whether scoremod has a backend of this name that this build was made without. Defined in registry.cpp.
bool is_left_out(const std::string& name);

}  // namespace scoremod::backend
