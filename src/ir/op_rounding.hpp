#pragma once

#include <cstdint>

#include "scoremod/program.hpp"

namespace scoremod::ir {

/// How computing an op in float32 rounds its result.
enum class Rounding : std::uint8_t {
  kNone,     ///< it is an argument, up to its sign, or an integer
  kNearest,  ///< it is the nearest float
  kFunction  ///< of a function: one of the two floats around it, or an implementation's approximation
};

Rounding rounding_of(Op op);

}  // namespace scoremod::ir
