#include "plans/file_access.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <ios>
#include <random>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "base/fail.hpp"
#include "base/file_size_signal.hpp"

namespace scoremod::plans {
namespace {

namespace fs = std::filesystem;

/// "0755"
std::string mode_text(mode_t mode) {
  std::array<char, 8> digits{};
  std::snprintf(digits.data(), digits.size(), "%04o", static_cast<unsigned>(mode & 07777U));
  return digits.data();
}

std::string system_text(int error) { return std::generic_category().message(error); }

/// A name that no other write uses at the same time. Process numbers would not do: containers that share a folder all
/// have the same ones.
std::string temporary_name() {
  std::random_device random;
  return concat(kTemporaryPrefix, random(), random());
}

void write_all(int descriptor, std::span<const std::byte> bytes, const fs::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_environment("cannot write ", path.string(), ": ", system_text(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

std::string open_to_all(const char* what, mode_t mode) {
  return concat(what, " every user can write (mode ", mode_text(mode), "): stored plans are code; chmod o-w it");
}

/// Fills a new file and waits until the disk has it: a rename that survives a power failure must not outlive the
/// contents.
void write_new(int descriptor, std::span<const std::byte> bytes, const fs::path& path) {
  const HeldFileSizeSignal held;
  write_all(descriptor, bytes, path);
  if (::fsync(descriptor) != 0) fail_environment("cannot write ", path.string(), ": ", system_text(errno));
}

}  // namespace

InputFile::InputFile(const fs::path& path) : path_(path.string()) {
  // Not to be stopped by a pipe of this name.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
  if (descriptor_ < 0) {
    missing_ = errno == ENOENT || errno == ENOTDIR;
    error_ = errno == ELOOP ? "a symbolic link, which is not followed" : system_text(errno);
    return;
  }
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) {
    error_ = system_text(errno);
  } else if (!S_ISREG(status.st_mode)) {
    error_ = S_ISDIR(status.st_mode) ? "a folder" : "not a regular file";
  } else if ((status.st_mode & S_IWOTH) != 0) {
    error_ = open_to_all("a file that", status.st_mode);
  }
  is_own_ = status.st_uid == ::geteuid() || status.st_uid == 0;
  bytes_ = static_cast<std::uint64_t>(status.st_size);
  modified_ = status.st_mtime;
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Bytes InputFile::read(std::uint64_t most) const {
  Bytes bytes(std::min(bytes_, most));
  std::size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got = ::pread(descriptor_, bytes.data() + filled, bytes.size() - filled, static_cast<off_t>(filled));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_environment("cannot read ", path_, ": ", system_text(errno));
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  bytes.resize(filled);
  return bytes;
}

void InputFile::touch() const { ::futimens(descriptor_, nullptr); }

std::string folder_objection(const fs::path& directory, bool file_is_own) {
  struct stat status {};
  if (::stat(directory.c_str(), &status) != 0 || (status.st_mode & S_IWOTH) == 0) return {};
  const bool may_replace = (status.st_mode & S_ISVTX) == 0;
  if (!may_replace && file_is_own) return {};
  return concat(may_replace ? "it is" : "it is another user's,", " in ", directory.string(), ", ",
                open_to_all("a folder that", status.st_mode));
}

void make_private_directory(const fs::path& directory) {
  std::error_code error;
  const fs::file_status found = fs::status(directory, error);
  if (directory.empty() || fs::is_directory(found)) return;
  const auto refuse = [&](const std::string& why) {
    fail_environment("cannot make the folder ", directory.string(), ": ", why);
  };
  // Making a folder above helps only if the error is "not found". A name that is too long for the system is refused at
  // once: it may have tens of thousands of folders above.
  if (found.type() != fs::file_type::not_found) refuse(error ? error.message() : "a file with this name is no folder");
  make_private_directory(directory.parent_path());
  if (::mkdir(directory.c_str(), S_IRWXU) == 0) return;
  const int failure = errno;
  // Another process may have made it.
  if (failure != EEXIST) refuse(system_text(failure));
  if (!fs::is_directory(directory, error)) refuse("a broken symbolic link has this name");
}

void write_atomically(const fs::path& directory, const std::string& name, std::span<const std::byte> bytes) {
  const fs::path temporary = directory / temporary_name();
  const int descriptor = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (descriptor < 0) fail_environment("cannot write ", temporary.string(), ": ", system_text(errno));
  try {
    write_new(descriptor, bytes, temporary);
    const fs::path path = directory / name;
    int renamed = ::rename(temporary.c_str(), path.c_str());
    if (renamed != 0 && errno == EISDIR && ::rmdir(path.c_str()) == 0) {
      renamed = ::rename(temporary.c_str(), path.c_str());
    }
    if (renamed != 0) fail_environment("cannot write ", path.string(), ": ", system_text(errno));
  } catch (...) {
    ::close(descriptor);
    ::unlink(temporary.c_str());
    throw;
  }
  ::close(descriptor);
}

bool remove_file(const fs::path& path) {
  if (::unlink(path.c_str()) == 0) return true;
  if (errno == EISDIR && ::rmdir(path.c_str()) == 0) return true;
  if (errno == ENOENT) return false;
  fail_environment("cannot delete ", path.string(), ": ", system_text(errno));
}

}  // namespace scoremod::plans
