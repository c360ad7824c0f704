#include "unit/plans/stored_records.hpp"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "base/canonical_bytes.hpp"
#include "plans/store_folder.hpp"

namespace scoremod::plans {

namespace fs = std::filesystem;

Record record_of(int number, std::size_t payload_bytes) {
  Record record;
  record.engine = "cudnn 9.19.0";
  record.architecture = "sm_90 NVIDIA H200";
  record.label = "plan " + std::to_string(number);
  record.key = CanonicalWriter().integer(number).written();
  record.payload.assign(payload_bytes, static_cast<std::byte>(number));
  return record;
}

bool is_there(PlanStore& store, int number) {
  const Record record = record_of(number);
  const std::vector<StoredFile> files = store.list();
  return std::any_of(files.begin(), files.end(), [&](const StoredFile& file) { return file.label == record.label; });
}

fs::path path_of(const PlanStore& store, const Record& record) {
  return store.directory() / file_name(record.kind, record.key);
}

Bytes read_bytes(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

void write_bytes(const fs::path& path, std::span<const std::byte> bytes) {
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

void set_age(const fs::path& path, std::chrono::seconds age) {
  fs::last_write_time(path, fs::file_time_type::clock::now() - age);
}

std::size_t file_count(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

}  // namespace scoremod::plans
