#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace scoremod {

/// The possible places of a file that is installed with the library; none need exist. They are the folder `scoremod`
/// beside the library, and the one in `lib` beside an executable that has the library's code inside.
std::vector<std::filesystem::path> companion_file(std::string_view name);

}  // namespace scoremod
