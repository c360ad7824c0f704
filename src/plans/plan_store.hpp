#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "scoremod/cache.hpp"

#include "plans/record.hpp"

namespace scoremod::plans {

inline constexpr std::uint64_t kDefaultStoreBytes = std::uint64_t{1} << 30;

/// Records in files of one folder, which several processes may use at once. Each file is written under another name,
/// synchronized and renamed, so that readers see whole files only.
///
/// load(), save() and forget() never throw for bad files or a failing file system: they warn once, and the caller goes
/// on without. Every other function throws Error(kEnvironment). Any function may be called from several threads at
/// once.
class PlanStore {
 public:
  /// An empty folder name is a store that is off: it finds nothing and takes nothing. The folder is made at the first
  /// save(), readable by its owner only: whoever can write into it decides which code runs on the device. A relative
  /// name is taken from the current folder of now: the store stays where it is when the process goes elsewhere.
  explicit PlanStore(const std::filesystem::path& directory, std::uint64_t max_bytes = kDefaultStoreBytes);

  const std::filesystem::path& directory() const { return directory_; }
  bool is_on() const { return !directory_.empty(); }
  std::uint64_t max_bytes() const { return max_bytes_; }
  void set_max_bytes(std::uint64_t bytes) { max_bytes_ = bytes; }

  /// The payload that was saved under exactly this key, and makes the file the last used. Nothing for a key that is not
  /// there, and for a file that is damaged, of another format, or of another key.
  std::optional<Bytes> load(RecordKind kind, const Bytes& key);
  /// Whether load() is likely to find something; reads nothing, and counts nothing.
  bool has(RecordKind kind, const Bytes& key) const;
  /// Replaces the record of this kind and key; then deletes the least recently used files over the limit. Returns
  /// whether the record is there now.
  bool save(const Record& record);
  /// Deletes the file of a record that turned out to be of no use, such as a plan that cuDNN does not load.
  void forget(RecordKind kind, const Bytes& key);

  PlanStoreStatistics statistics() const;

  // The functions of cache.hpp, for this folder.
  std::vector<StoredFile> list() const;
  std::vector<StoredFile> verify() const;
  StoreDeletion prune(std::uint64_t max_bytes);
  StoreDeletion remove_damaged();
  StoreDeletion clear();

 private:
  void warn_once(std::atomic<bool>& warned, const std::string& text);
  void warn_of_writing(const std::exception& error);
  void write(const Record& record);

  const std::filesystem::path directory_;
  std::atomic<std::uint64_t> max_bytes_;
  std::atomic<std::uint64_t> hits_{0}, misses_{0}, rejected_{0}, writes_{0}, failed_writes_{0};
  std::atomic<bool> warned_of_reading_{false}, warned_of_writing_{false};
};

/// The process's store: at first the environment's, later that of set_plan_store_directory().
std::shared_ptr<PlanStore> plan_store();

}  // namespace scoremod::plans
