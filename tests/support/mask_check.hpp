#pragma once

#include <cstdint>
#include <string>

#include "masks/classify_mask.hpp"

namespace scoremod::test {

/// Compares a classification with the program at every element of many small boxes. They lie at the origin, near the
/// constants of a test, beyond 2^24 and at the end of the valid indices (below context.index_limit). Each term is
/// evaluated as its node and by its kind. Returns the first element where they differ, or nothing.
std::string check_split(const Program& program, const masks::MaskClass& mask, const masks::MaskContext& context,
                        std::uint64_t seed);

}  // namespace scoremod::test
