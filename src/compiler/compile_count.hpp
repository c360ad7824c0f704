#pragma once

#include <cstdint>

namespace scoremod::compiler {

/// How often compile() was called since the process began.
std::uint64_t compile_count();

}  // namespace scoremod::compiler
