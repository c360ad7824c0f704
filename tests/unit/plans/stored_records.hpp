#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/warning.hpp"
#include "plans/plan_store.hpp"

namespace scoremod::plans {

/// Collects warnings instead of printing them.
class Warnings {
 public:
  Warnings() : before_(set_warning_handler([this](const std::string& text) { texts.push_back(text); })) {}
  ~Warnings() { set_warning_handler(before_); }
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;

  std::vector<std::string> texts;

 private:
  WarningHandler before_;
};

Record record_of(int number, std::size_t payload_bytes = 100);
bool is_there(PlanStore& store, int number);
std::filesystem::path path_of(const PlanStore& store, const Record& record);
Bytes read_bytes(const std::filesystem::path& path);
void write_bytes(const std::filesystem::path& path, std::span<const std::byte> bytes);
/// Makes a file look as if it was last used so long ago.
void set_age(const std::filesystem::path& path, std::chrono::seconds age);
std::size_t file_count(const std::filesystem::path& folder);

}  // namespace scoremod::plans
