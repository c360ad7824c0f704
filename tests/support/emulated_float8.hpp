#pragma once

#include <string_view>

namespace scoremod::test {

/// Text in place of `device float8` in float8/tiles.cuh, after that of emulated_hopper_primitives(): WGMMAs of e4m3.
/// Their sums keep as few digits as a Hopper device's.
std::string_view emulated_float8_primitives();

}  // namespace scoremod::test
