#pragma once

#include <cstdint>
#include <string>

#include "scoremod/program.hpp"

namespace scoremod::test {

/// Evaluates two programs with equal operands in float32 at one element, whose leaves are drawn from `seed`. About half
/// of the seeds give special values (signed zeros, infinities, NaN, subnormals, the ends of i32), others ordinary ones.
/// Returns the differences among the roots, bit for bit except NaN, or nothing. An operand adjoint is compared with the
/// indices that it goes to.
std::string difference(const Program& expected, const Program& found, std::uint64_t seed);

/// The first difference over seeds 0 to `count` - 1, with both programs' texts; nothing when there is none.
std::string first_difference(const Program& expected, const Program& found, std::uint64_t count);

}  // namespace scoremod::test
