#pragma once

#include <cstdio>
#include <memory>
#include <string>

namespace scoremod::input {

/// A file that was opened for reading, or why it was not, in words that a message can end with.
struct InputFile {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file;
  std::string failure;
};

/// Opens a file, and does not wait for somebody to write into a pipe that nobody has open: that is a failure. A pipe
/// that has a writer, such as the shell's <(...), is read.
InputFile open_input_file(const std::string& path);

}  // namespace scoremod::input
