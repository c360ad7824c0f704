#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <span>
#include <string>

#include "base/bytes.hpp"

namespace scoremod::plans {

/// An open file for reading; closed with the object.
class InputFile {
 public:
  /// Opens a regular file. Anything else, such as a pipe that would block or a link to another file, counts as one that
  /// can't be read. So does a file that every user can write.
  explicit InputFile(const std::filesystem::path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  bool is_missing() const { return missing_; }
  /// Why it can't be read, in the system's words; empty when it can.
  const std::string& error() const { return error_; }
  std::uint64_t bytes() const { return bytes_; }
  std::time_t modified() const { return modified_; }
  /// Whether it belongs to this process's user, or to the system's.
  bool is_own() const { return is_own_; }

  /// The first bytes, as many as there are up to `most`. Throws Error(kEnvironment).
  Bytes read(std::uint64_t most) const;
  /// Sets the time of modification to now. It is no error when only the owner may.
  void touch() const;

 private:
  std::string path_;
  int descriptor_ = -1;
  bool missing_ = false;
  std::string error_;
  std::uint64_t bytes_ = 0;
  std::time_t modified_ = 0;
  bool is_own_ = false;
};

/// Why any user may have written a file of the folder, which is code; empty where none may. A folder like /tmp lets
/// users make files, but not replace those of others.
std::string folder_objection(const std::filesystem::path& directory, bool file_is_own);

/// Beginning of the names of files that are being written; digits follow.
inline constexpr const char* kTemporaryPrefix = ".writing-";

/// Makes the folder, with its parents, for its owner only; one that is there stays as it is.
void make_private_directory(const std::filesystem::path& directory);
/// Writes a file so that its name always has either the old contents or all of `bytes`. Takes the place of an empty
/// folder too. Throws Error(kEnvironment) with the system's text, and leaves nothing behind then.
void write_atomically(const std::filesystem::path& directory, const std::string& name,
                      std::span<const std::byte> bytes);
/// Whether the file was there. A link is deleted itself, not its target; a folder only if it is empty. Throws
/// Error(kEnvironment) if it is there and can't be deleted.
bool remove_file(const std::filesystem::path& path);

}  // namespace scoremod::plans
