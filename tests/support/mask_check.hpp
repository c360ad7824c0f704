#pragma once

#include <cstdint>
#include <string>

#include "masks/classify_mask.hpp"

namespace scoremod::test {

/// Holds a classification against the program at every element of many small boxes: at the origin, about places that
/// the constants of a test use, beyond 2^24 and at the end of the valid indices (below context.index_limit). Each term
/// is evaluated both as its node and as what its kind promises. Returns the first element where they differ, or
/// nothing.
std::string check_split(const Program& program, const masks::MaskClass& mask, const masks::MaskContext& context,
                        std::uint64_t seed);

}  // namespace scoremod::test
