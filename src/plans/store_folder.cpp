#include "plans/store_folder.hpp"

#include <algorithm>
#include <chrono>
#include <exception>
#include <iomanip>
#include <optional>
#include <sstream>
#include <string_view>
#include <sys/stat.h>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/fail.hpp"
#include "plans/file_access.hpp"

namespace scoremod::plans {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".scoremod";
constexpr std::size_t kHashDigits = 16;
/// A write takes milliseconds; an older one was interrupted.
constexpr std::chrono::seconds kOldestWrite{3600};
constexpr std::chrono::seconds kMaxClockDifference{60};

bool is_hexadecimal(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_record_name(std::string_view name) {
  for (const RecordKind kind : kRecordKinds) {
    const std::string prefix = concat(to_string(kind), "-");
    if (!name.starts_with(prefix) || !name.ends_with(kSuffix)) continue;
    if (name.size() != prefix.size() + kHashDigits + kSuffix.size()) continue;
    if (is_hexadecimal(name.substr(prefix.size(), kHashDigits))) return true;
  }
  return false;
}

bool is_temporary_name(std::string_view name) {
  const std::string_view prefix = kTemporaryPrefix;
  return name.starts_with(prefix) && is_hexadecimal(name.substr(prefix.size()));
}

/// A file of the folder, as the system knows it.
struct FolderFile {
  std::string name;
  bool temporary = false;
  std::uint64_t bytes = 0;               ///< 0 unless it is a regular file
  std::chrono::nanoseconds modified{0};  ///< 0 where it is not known
};

std::chrono::nanoseconds now() { return std::chrono::system_clock::now().time_since_epoch(); }

/// When the file was last written or used. Clocks of machines that share a folder may differ a little. A time well in
/// the future is meaningless, and would keep its file longest.
std::chrono::nanoseconds time_of(const struct stat& status) {
  const auto time = std::chrono::seconds(status.st_mtim.tv_sec) + std::chrono::nanoseconds(status.st_mtim.tv_nsec);
  return time - now() > kMaxClockDifference ? std::chrono::nanoseconds(0) : time;
}

bool is_being_written(const FolderFile& file) { return file.temporary && now() - file.modified < kOldestWrite; }

bool used_later(const FolderFile& a, const FolderFile& b) {
  return std::tie(a.modified, a.name) > std::tie(b.modified, b.name);
}

/// The store's files, the last used first; whatever else has the name of one is among them, so that it can be seen and
/// deleted.
std::vector<FolderFile> scan(const fs::path& directory) {
  std::vector<FolderFile> files;
  if (directory.empty()) return files;
  std::error_code error;
  fs::directory_iterator entry(directory, error);
  if (error == std::errc::no_such_file_or_directory) return files;
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool temporary = is_temporary_name(name);
    struct stat status {};
    if (!temporary && !is_record_name(name)) continue;
    if (::lstat(entry->path().c_str(), &status) != 0) continue;
    if (temporary && !S_ISREG(status.st_mode)) continue;
    const auto bytes = S_ISREG(status.st_mode) ? static_cast<std::uint64_t>(status.st_size) : 0;
    files.push_back({name, temporary, bytes, time_of(status)});
  }
  if (error) fail_environment("cannot read the folder ", directory.string(), ": ", error.message());
  std::sort(files.begin(), files.end(), used_later);
  return files;
}

/// Nothing when the file has gone since it was listed.
std::optional<StoredFile> describe(const fs::path& directory, const FolderFile& file, Depth depth) {
  StoredFile described;
  described.name = file.name;
  described.bytes = file.bytes;
  described.last_used = std::chrono::duration_cast<std::chrono::seconds>(file.modified).count();
  const InputFile input(directory / file.name);
  if (input.is_missing()) return std::nullopt;
  RecordFile found;
  if (!input.error().empty()) {
    found.damage = concat("cannot be read: ", input.error());
  } else if (depth == Depth::kContents) {
    found = read_record(input);
  } else {
    found = decode_header(input.read(kMaxHeaderBytes), input.bytes());
  }
  if (found.damage.empty() && file.name != file_name(found.record.kind, found.record.key)) {
    found.damage = "has the name of another record";
  }
  described.damage = std::move(found.damage);
  if (!described.damage.empty()) return described;
  described.kind = to_string(found.record.kind);
  described.library = std::move(found.library);
  described.engine = std::move(found.record.engine);
  described.architecture = std::move(found.record.architecture);
  described.label = std::move(found.record.label);
  return described;
}

/// Deletes files and counts them. One that can't be deleted keeps no other from being deleted.
class Deletion {
 public:
  explicit Deletion(fs::path directory) : directory_(std::move(directory)) {}

  void remove(const std::string& name, std::uint64_t bytes) {
    try {
      if (!remove_file(directory_ / name)) return;  // somebody else was faster
      ++done_.files;
      done_.bytes += bytes;
    } catch (const Error&) {
      if (!failure_) failure_ = std::current_exception();
    }
  }

  /// The counts of the deletion; throws the first failure.
  StoreDeletion finish() const {
    if (failure_) std::rethrow_exception(failure_);
    return done_;
  }

 private:
  fs::path directory_;
  StoreDeletion done_;
  std::exception_ptr failure_;
};

}  // namespace

std::string file_name(RecordKind kind, const Bytes& key) {
  std::ostringstream name;
  name << to_string(kind) << '-' << std::hex << std::setw(kHashDigits) << std::setfill('0') << fnv1a(key) << kSuffix;
  return name.str();
}

RecordFile read_record(const InputFile& file) {
  if (!file.error().empty()) return {concat("cannot be read: ", file.error()), {}, {}};
  if (file.bytes() > kMaxFileBytes) return {"is too long for a file of scoremod's plan store", {}, {}};
  return decode(file.read(kMaxFileBytes));
}

std::vector<StoredFile> read_folder(const fs::path& directory, Depth depth) {
  std::vector<StoredFile> described;
  for (const FolderFile& file : scan(directory)) {
    if (file.temporary) continue;
    if (auto one = describe(directory, file, depth)) described.push_back(std::move(*one));
  }
  return described;
}

StoreDeletion prune_folder(const fs::path& directory, std::uint64_t max_bytes, const std::string& kept) {
  Deletion deletion(directory);
  const std::vector<FolderFile> files = scan(directory);
  const auto first = std::ranges::find(files, kept, &FolderFile::name);
  std::uint64_t used = first != files.end() ? first->bytes : 0;
  for (const FolderFile& file : files) {
    // A write of another process may be under way.
    if (file.name == kept || is_being_written(file)) continue;
    if (!file.temporary) used += file.bytes;
    if (file.temporary || used > max_bytes) deletion.remove(file.name, file.bytes);
  }
  return deletion.finish();
}

StoreDeletion remove_damaged_files(const fs::path& directory) {
  Deletion deletion(directory);
  for (const StoredFile& file : read_folder(directory, Depth::kContents)) {
    if (!file.damage.empty()) deletion.remove(file.name, file.bytes);
  }
  return deletion.finish();
}

StoreDeletion clear_folder(const fs::path& directory) {
  Deletion deletion(directory);
  for (const FolderFile& file : scan(directory)) {
    if (!is_being_written(file)) deletion.remove(file.name, file.bytes);
  }
  return deletion.finish();
}

}  // namespace scoremod::plans
