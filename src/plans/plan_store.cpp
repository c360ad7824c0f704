#include "plans/plan_store.hpp"

#include <exception>
#include <system_error>
#include <utility>

#include "base/fail.hpp"
#include "base/warning.hpp"
#include "plans/file_access.hpp"
#include "plans/record_file.hpp"
#include "plans/store_folder.hpp"

namespace scoremod::plans {

namespace {

std::filesystem::path absolute_or_empty(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::path absolute = directory.empty() ? directory : std::filesystem::absolute(directory, error);
  return error ? directory : absolute;
}

}  // namespace

PlanStore::PlanStore(const std::filesystem::path& directory, std::uint64_t max_bytes)
    : directory_(absolute_or_empty(directory)), max_bytes_(max_bytes) {}

void PlanStore::warn_once(std::atomic<bool>& warned, const std::string& text) {
  if (!warned.exchange(true)) warn(text);
}

std::optional<Bytes> PlanStore::load(RecordKind kind, const Bytes& key) {
  if (!is_on()) return std::nullopt;
  std::string trouble;
  try {
    const std::filesystem::path path = directory_ / file_name(kind, key);
    const InputFile file(path);
    if (file.is_missing()) {
      ++misses_;
      return std::nullopt;
    }
    const std::string objection = folder_objection(directory_, file.is_own());
    if (!objection.empty()) fail_environment(path.string(), ": ", objection);
    RecordFile found = read_record(file);
    // Two keys may share a name, which is a hash; the one that was saved last has the file.
    if (found.damage.empty() && (found.record.key != key || found.record.kind != kind)) {
      ++misses_;
      return std::nullopt;
    }
    if (found.damage.empty()) {
      file.touch();
      ++hits_;
      return std::move(found.record.payload);
    }
    trouble = concat(path.string(), " ", found.damage);
  } catch (const std::exception& error) {
    trouble = error.what();
  }
  ++misses_;
  ++rejected_;
  warn_once(warned_of_reading_, concat("a stored plan is not used: ", trouble,
                                       "; it will be built again (scoremod cache verify lists such files)"));
  return std::nullopt;
}

bool PlanStore::has(RecordKind kind, const Bytes& key) const {
  std::error_code error;
  return is_on() && std::filesystem::is_regular_file(directory_ / file_name(kind, key), error);
}

void PlanStore::write(const Record& record) {
  const Bytes file = encode(record);
  if (file.size() > max_bytes_) {
    fail_environment("a record of ", file.size(), " bytes is over the store's limit of ", max_bytes_.load());
  }
  make_private_directory(directory_);
  // Others would read what anybody may have put there.
  const std::string objection = folder_objection(directory_, true);
  if (!objection.empty()) fail_environment("a plan would not be safe: ", objection);
  write_atomically(directory_, file_name(record.kind, record.key), file);
}

void PlanStore::warn_of_writing(const std::exception& error) {
  warn_once(warned_of_writing_, concat("plans are not stored: ", error.what(),
                                       "; they will be built again in each process (set SCOREMOD_CACHE_DIR to a folder "
                                       "with space, or SCOREMOD_CACHE=off)"));
}

bool PlanStore::save(const Record& record) {
  if (!is_on()) return false;
  bool written = false;
  try {
    write(record);
    written = true;
    prune_folder(directory_, max_bytes_, file_name(record.kind, record.key));
  } catch (const std::exception& error) {
    warn_of_writing(error);
  }
  ++(written ? writes_ : failed_writes_);
  return written;
}

void PlanStore::forget(RecordKind kind, const Bytes& key) {
  if (!is_on()) return;
  try {
    remove_file(directory_ / file_name(kind, key));
  } catch (const std::exception& error) {
    warn_of_writing(error);
  }
}

PlanStoreStatistics PlanStore::statistics() const { return {hits_, misses_, rejected_, writes_, failed_writes_}; }

std::vector<StoredFile> PlanStore::list() const { return read_folder(directory_, Depth::kHeaders); }

std::vector<StoredFile> PlanStore::verify() const { return read_folder(directory_, Depth::kContents); }

StoreDeletion PlanStore::prune(std::uint64_t max_bytes) { return prune_folder(directory_, max_bytes); }

StoreDeletion PlanStore::remove_damaged() { return remove_damaged_files(directory_); }

StoreDeletion PlanStore::clear() { return clear_folder(directory_); }

}  // namespace scoremod::plans
