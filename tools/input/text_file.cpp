#include "text_file.hpp"

#include <cerrno>
#include <cstring>
#include <memory>

#include "scoremod/error.hpp"

namespace scoremod::input {
namespace {

/// Larger than any problem that the library reads, so that an endless file ends.
constexpr std::size_t kMaxBytes = std::size_t{33} << 20;

}  // namespace

std::string read_text(const std::string& path, const std::string& expected) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (file == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                path + ": cannot be read: " + std::strerror(errno) + "; expected " + expected);
  }
  return read_text(file.get(), path);
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
