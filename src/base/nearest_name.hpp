#pragma once

#include <span>
#include <string>
#include <string_view>

namespace scoremod {

/// " (did you mean 'NAME'?)" with the known name that is closest to `found`, or "" when none is close enough to be a
/// slip.
std::string suggestion(std::string_view found, std::span<const std::string> known);
/// "'a', 'b' and 'c'", or "none".
std::string name_list(std::span<const std::string> names);

}  // namespace scoremod
