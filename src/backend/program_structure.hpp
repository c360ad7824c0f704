#pragma once

#include <cstdint>

#include "scoremod/program.hpp"

#include "base/canonical_bytes.hpp"
#include "masks/mask_class.hpp"

namespace scoremod::backend {

/// The part of an i32 constant that is structure. 0 and 1 are themselves, because passes and lowerings know them; of
/// others only the sign counts.
std::int64_t constant_kind(std::int64_t value);

/// Writes a program without the names of its operands, and with constant_kind() of its i32 constants. The bytes of two
/// programs are equal exactly if a trial of one verifies the other.
void write_structure(CanonicalWriter& out, const Program& program);

/// Writes a mask's kind, its terms and which ends its band has, which determine the kernels' text. The band's bounds
/// are arguments of a kernel, and change with lengths.
void write_structure(CanonicalWriter& out, const masks::MaskClass& mask);

}  // namespace scoremod::backend
