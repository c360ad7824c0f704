#pragma once

#include <string>

namespace scoremod::cli {

/// The properties of a device from the file that `scoremod device` wrote; the library says whether they are some.
std::string read_device(const std::string& path);

}  // namespace scoremod::cli
