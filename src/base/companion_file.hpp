#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace scoremod {

/// Where a file that is installed with the library may lie: its folder `scoremod` is beside the library, or in the
/// folder `lib` beside the one of an executable that has the library's code inside. None need exist.
std::vector<std::filesystem::path> companion_file(std::string_view name);

}  // namespace scoremod
