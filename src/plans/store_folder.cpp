#include "plans/store_folder.hpp"

#include <algorithm>
#include <chrono>
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
/// A write takes milliseconds; what is older was interrupted.
constexpr std::chrono::seconds kOldestWrite{3600};

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
  std::uint64_t bytes = 0;
  std::chrono::nanoseconds modified{0};
};

bool used_later(const FolderFile& a, const FolderFile& b) {
  return std::tie(a.modified, a.name) > std::tie(b.modified, b.name);
}

/// The store's files, the last used first.
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
    if (::lstat(entry->path().c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    files.push_back({name, temporary, static_cast<std::uint64_t>(status.st_size),
                     std::chrono::seconds(status.st_mtim.tv_sec) + std::chrono::nanoseconds(status.st_mtim.tv_nsec)});
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

/// Deletes a file and counts it, unless somebody else was faster.
void remove_counted(const fs::path& directory, const std::string& name, std::uint64_t bytes, StoreDeletion* deletion) {
  if (!remove_file(directory / name)) return;
  ++deletion->files;
  deletion->bytes += bytes;
}

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

StoreDeletion prune_folder(const fs::path& directory, std::uint64_t max_bytes) {
  StoreDeletion deletion;
  std::uint64_t used = 0;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  for (const FolderFile& file : scan(directory)) {
    // A write of another process may be under way.
    if (file.temporary && now - file.modified < kOldestWrite) continue;
    if (!file.temporary) used += file.bytes;
    if (file.temporary || used > max_bytes) remove_counted(directory, file.name, file.bytes, &deletion);
  }
  return deletion;
}

StoreDeletion remove_damaged_files(const fs::path& directory) {
  StoreDeletion deletion;
  for (const StoredFile& file : read_folder(directory, Depth::kContents)) {
    if (!file.damage.empty()) remove_counted(directory, file.name, file.bytes, &deletion);
  }
  return deletion;
}

StoreDeletion clear_folder(const fs::path& directory) { return prune_folder(directory, 0); }

}  // namespace scoremod::plans
