#include "text_file.hpp"

#include <cerrno>
#include <cstring>

#include "scoremod/error.hpp"

#include "input_file.hpp"

namespace scoremod::input {
namespace {

/// Larger than any problem that the library reads, so that an endless file ends.
constexpr std::size_t kMaxBytes = std::size_t{33} << 20;

}  // namespace

std::string read_text(const std::string& path, const std::string& expected) {
  const InputFile input = open_input_file(path);
  if (input.file == nullptr) {
    throw Error(ErrorCode::kInvalidArgument, path + ": cannot be read: " + input.failure + "; expected " + expected);
  }
  return read_text(input.file.get(), path);
}

std::string read_text(std::FILE* file, const std::string& name) {
  std::string text;
  char buffer[65536];
  while (text.size() < kMaxBytes) {
    const std::size_t count = std::fread(buffer, 1, sizeof(buffer), file);
    text.append(buffer, count);
    if (count < sizeof(buffer)) break;
  }
  if (std::ferror(file) != 0) {
    throw Error(ErrorCode::kInvalidArgument, name + ": cannot be read: " + std::strerror(errno));
  }
  return text;
}

}  // namespace scoremod::input
