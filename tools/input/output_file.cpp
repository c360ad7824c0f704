#include "output_file.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "fail.hpp"

namespace scoremod::input {
namespace {

/// Deletes what it names unless told that it has been put to use.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::filesystem::path path) : path_(std::move(path)) {}
  ~TemporaryFile() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void rename_to(const std::filesystem::path& target) {
    std::error_code error;
    std::filesystem::rename(path_, target, error);
    if (error) fail(ErrorCode::kEnvironment, target.string(), ": cannot be written: ", error.message());
    path_.clear();
  }

 private:
  std::filesystem::path path_;
};

}  // namespace

void write_file(const std::filesystem::path& path, std::initializer_list<std::span<const std::byte>> parts) {
  std::filesystem::path temporary_path = path;
  temporary_path += ".partial";
  TemporaryFile temporary(temporary_path);
  const auto refuse = [&](int error) {
    fail(ErrorCode::kEnvironment, path.string(), ": cannot be written: ", std::strerror(error));
  };
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(temporary_path.c_str(), "wb"), std::fclose);
  if (file == nullptr) refuse(errno);
  for (const std::span<const std::byte> part : parts) {
    if (std::fwrite(part.data(), 1, part.size(), file.get()) != part.size()) refuse(errno);
  }
  if (std::fclose(file.release()) != 0) refuse(errno);
  temporary.rename_to(path);
}

}  // namespace scoremod::input
