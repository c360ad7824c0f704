#pragma once

#include <cstdint>

#include "scoremod/program.hpp"

#include "base/canonical_bytes.hpp"
#include "masks/mask_class.hpp"

namespace scoremod::backend {

/// What of an i32 constant is structure: 0 and 1 are themselves, because passes and lowerings know them, and of others
/// the sign counts.
std::int64_t constant_kind(std::int64_t value);

/// Writes a program but for the names of its operands and the values of its i32 constants, of which it writes
/// constant_kind(): the same bytes for two programs exactly when a trial of one says what a trial of the other would.
void write_structure(CanonicalWriter& out, const Program& program);

/// Writes a mask's kind, its terms and which ends its band has: what kernels' text goes by. Where the band ends is an
/// argument of a kernel, and another one at other lengths.
void write_structure(CanonicalWriter& out, const masks::MaskClass& mask);

}  // namespace scoremod::backend
