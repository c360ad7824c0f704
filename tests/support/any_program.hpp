#pragma once

#include <cstdint>

#include "scoremod/program.hpp"

namespace scoremod::test {

/// A random program of any shape: small or large, tame or wild, of a user or of a derivative.
Program any_program(std::uint64_t seed);

}  // namespace scoremod::test
