#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "scoremod/cache.hpp"

#include "plans/record_file.hpp"

namespace scoremod::plans {

class InputFile;

// The files of a store's folder. Only files with a store's names are ever read or deleted, so that a folder that was
// not meant for it loses nothing. Files that vanish meanwhile, by another process, are no error. An empty folder name
// and a folder that is not there have no files. Everything throws Error(kEnvironment).

/// "plan-0123456789abcdef.scoremod": the kind and a hash of the key.
std::string file_name(RecordKind kind, const Bytes& key);

/// Reads a whole file that could be opened.
RecordFile read_record(const InputFile& file);

/// How much of each file is read.
enum class Depth : std::uint8_t { kHeaders, kContents };

/// The last used first.
std::vector<StoredFile> read_folder(const std::filesystem::path& directory, Depth depth);
/// Deletes the least recently used until the rest takes at most `max_bytes`; and the remains of interrupted writes.
/// Never deletes the file named `kept`, which counts as the last used.
StoreDeletion prune_folder(const std::filesystem::path& directory, std::uint64_t max_bytes,
                           const std::string& kept = {});
StoreDeletion remove_damaged_files(const std::filesystem::path& directory);
StoreDeletion clear_folder(const std::filesystem::path& directory);

}  // namespace scoremod::plans
