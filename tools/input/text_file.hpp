#pragma once

#include <cstdio>
#include <string>

namespace scoremod::input {

/// The text of the file at `path`. Throws Error(kInvalidArgument) where it cannot be read, and says that `expected`
/// was.
std::string read_text(const std::string& path, const std::string& expected);

/// What is left of `file`, which messages call `name`. Of more than any input has, such as an endless device, the
/// beginning.
std::string read_text(std::FILE* file, const std::string& name);

}  // namespace scoremod::input
