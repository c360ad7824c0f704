#include "output_file.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>

#include <CLI/CLI.hpp>

#include "fail.hpp"

namespace scoremod::input {
namespace {

namespace fs = std::filesystem;
using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

[[noreturn]] void refuse(const fs::path& path, const std::string& why) {
  fail(ErrorCode::kEnvironment, path.string(), ": cannot be written: ", why);
}

/// A new file beside `target`, which is deleted unless it takes that one's place. Its name is its own, for another
/// process may be writing the same target.
class TemporaryFile {
 public:
  explicit TemporaryFile(const fs::path& target) : target_(target), path_(target) {
    path_ += ".partial-" + std::to_string(std::random_device()());
    file_.reset(std::fopen(path_.c_str(), "wbx"));
    if (file_ == nullptr) refuse(target_, std::strerror(errno));
  }
  ~TemporaryFile() {
    std::error_code ignored;
    if (!renamed_) fs::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  File& file() { return file_; }
  void take_the_targets_place() {
    std::error_code error;
    fs::rename(path_, target_, error);
    if (error) refuse(target_, error.message());
    renamed_ = true;
  }

 private:
  fs::path target_;
  fs::path path_;
  File file_{nullptr, std::fclose};
  bool renamed_ = false;
};

/// A file that another can take the place of by its name, or none yet.
bool is_replaceable(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(path, error);
  return fs::is_regular_file(status) || !fs::exists(status);
}

void fill(File& file, const fs::path& path, std::initializer_list<std::span<const std::byte>> parts) {
  for (const std::span<const std::byte> part : parts) {
    // An empty part may have no address, which fwrite() does not take.
    if (!part.empty() && std::fwrite(part.data(), 1, part.size(), file.get()) != part.size())
      refuse(path, std::strerror(errno));
  }
  if (std::fclose(file.release()) != 0) refuse(path, std::strerror(errno));
}

}  // namespace

void write_file(const fs::path& path, std::initializer_list<std::span<const std::byte>> parts) {
  if (!is_replaceable(path)) {
    File file(std::fopen(path.c_str(), "wb"), std::fclose);
    if (file == nullptr) refuse(path, std::strerror(errno));
    return fill(file, path, parts);
  }
  TemporaryFile temporary(path);
  fill(temporary.file(), path, parts);
  temporary.take_the_targets_place();
}

void write_file(const fs::path& path, std::string_view text) { write_file(path, {std::as_bytes(std::span(text))}); }

void expect_writable(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) refuse(path, std::strerror(EISDIR));
  // A device or a pipe is not opened before there is something to write.
  if (is_replaceable(path)) const TemporaryFile made_and_deleted(path);
}

CLI::Option* add_out(CLI::App& app, std::string& out, const std::string& what, const std::string& help) {
  const auto check = [=](const std::string& text) {
    return text.empty() ? "expected a " + what + ", found an empty name (a variable that is not set?)" : std::string();
  };
  return app.add_option("--out", out, help)->check(check);
}

}  // namespace scoremod::input
