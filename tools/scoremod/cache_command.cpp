#include <cstdint>
#include <ctime>
#include <functional>
#include <iomanip>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "scoremod/cache.hpp"

#include "commands.hpp"
#include "exit_code.hpp"
#include "fail.hpp"
#include "integer_range.hpp"
#include "standard_output.hpp"

namespace scoremod::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
  std::optional<std::string> directory;
  std::optional<std::uint64_t> max_bytes;
  bool remove = false;
  bool json = false;
};

void choose_store(const Arguments& arguments) {
  if (arguments.directory && arguments.directory->empty()) {
    input::fail(ErrorCode::kInvalidArgument,
                "--dir: expected a folder, found an empty name (a variable that is not set?); leave --dir out for the "
                "environment's folder");
  }
  if (arguments.directory) set_plan_store_directory(*arguments.directory);
  if (!plan_store_directory().empty()) return;
  input::fail(
      ErrorCode::kInvalidArgument,
      "expected a plan store, found none: it is switched off (SCOREMOD_CACHE) or no folder is known; name one with "
      "--dir");
}

std::string dump(const Json& json) { return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

std::string time_text(std::int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm fields{};
  if (::gmtime_r(&time, &fields) == nullptr) return "?";
  std::ostringstream out;
  out << std::put_time(&fields, "%Y-%m-%d %H:%M");
  return out.str();
}

std::string count_text(std::uint64_t files, std::uint64_t bytes) {
  std::ostringstream out;
  out << files << (files == 1 ? " file, " : " files, ") << bytes << " bytes";
  return out.str();
}

Json file_json(const StoredFile& file) {
  return {{"name", file.name},           {"bytes", file.bytes},
          {"last_used", file.last_used}, {"damage", file.damage.empty() ? Json(nullptr) : Json(file.damage)},
          {"kind", file.kind},           {"library", file.library},
          {"engine", file.engine},       {"architecture", file.architecture},
          {"label", file.label}};
}

std::string files_json(const std::vector<StoredFile>& files) {
  Json json{{"directory", plan_store_directory()}, {"limit_bytes", plan_store_limit()}, {"files", Json::array()}};
  for (const StoredFile& file : files) json["files"].push_back(file_json(file));
  return dump(json);
}

std::string files_text(const std::vector<StoredFile>& files) {
  std::ostringstream out;
  std::uint64_t bytes = 0;
  for (const StoredFile& file : files) {
    bytes += file.bytes;
    out << time_text(file.last_used) << std::setw(10) << file.bytes << "  " << file.name << "\n    ";
    if (!file.damage.empty()) {
      out << "DAMAGED: " << file.damage << "\n";
    } else {
      out << file.label << "; " << file.architecture << ", " << file.engine << ", scoremod " << file.library << "\n";
    }
  }
  out << plan_store_directory() << ": " << count_text(files.size(), bytes) << " of at most " << plan_store_limit()
      << "\n";
  return out.str();
}

void write_files(const std::vector<StoredFile>& files, bool json) {
  write_output(json ? files_json(files) : files_text(files));
}

int write_deletion(const StoreDeletion& deletion, bool json) {
  const Json counts{{"directory", plan_store_directory()}, {"files", deletion.files}, {"bytes", deletion.bytes}};
  write_output(json ? dump(counts) : "deleted " + count_text(deletion.files, deletion.bytes) + "\n");
  return kFine;
}

int list(const Arguments& arguments) {
  write_files(list_plan_store(), arguments.json);
  return kFine;
}

int verify(const Arguments& arguments) {
  if (arguments.remove) return write_deletion(remove_damaged_from_plan_store(), arguments.json);
  const std::vector<StoredFile> files = verify_plan_store();
  write_files(files, arguments.json);
  for (const StoredFile& file : files) {
    if (!file.damage.empty()) return kCheckFailed;
  }
  return kFine;
}

int prune(const Arguments& arguments) {
  return write_deletion(prune_plan_store(arguments.max_bytes.value_or(plan_store_limit())), arguments.json);
}

int clear(const Arguments& arguments) { return write_deletion(clear_plan_store(), arguments.json); }

}  // namespace

void add_cache(CLI::App& app, Action* action) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("cache", "Look at the files in which plans are kept, and delete them");
  command->require_subcommand(1);
  const auto add = [&](const char* name, const char* purpose, int (*run)(const Arguments&)) {
    CLI::App* subcommand = command->add_subcommand(name, purpose);
    subcommand->add_option("--dir", arguments->directory, "Folder of the files, instead of the environment's");
    subcommand->add_flag("--json", arguments->json, "Print JSON");
    subcommand->callback([=] {
      *action = [=] {
        choose_store(*arguments);
        return run(*arguments);
      };
    });
    return subcommand;
  };
  add("list", "List the files, the last used first", list);
  add("verify", "Read every file in full; exit code 1 if one is damaged", verify)
      ->add_flag("--remove", arguments->remove, "Delete the damaged ones");
  add("prune", "Delete the least recently used files over a limit, and what interrupted writes have left", prune)
      ->add_option("--max-bytes", arguments->max_bytes, "The limit; the store's own if left out")
      ->check(input::integer_range(0, std::numeric_limits<std::uint64_t>::max()));
  add("clear", "Delete every file of the store", clear);
}

}  // namespace scoremod::cli
