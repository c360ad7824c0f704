#pragma once

#include <cstdio>
#include <string>

namespace scoremod::input {

/// The text of the file at `path`. Throws Error(kInvalidArgument) where it cannot be read, and says that `expected`
/// was.
std::string read_text(const std::string& path, const std::string& expected);

/// The rest of `file`, which messages call `name`. Reading stops beyond the size of any input, as for an endless
/// device.
std::string read_text(std::FILE* file, const std::string& name);

}  // namespace scoremod::input
