// Builds a real plan of every ready-made modifier, forward and backward, for every architecture, without a device.
// Compares the answers with the committed table for this version of cuDNN. See docs/reference/plans.md.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

#include <CLI/CLI.hpp>

#include "scoremod/error.hpp"

#include "backend/cuda/device/load_stub_driver.hpp"
#include "backend/cudnn/graph/library.hpp"
#include "backend/cudnn/patterns/pattern_table.hpp"
#include "backend/device_properties.hpp"
#include "tools/cudnn/cell.hpp"
#include "tools/cudnn/commands.hpp"
#include "tools/cudnn/table.hpp"
#include "tools/cudnn/worker_pool.hpp"

namespace {

namespace acceptance = scoremod::acceptance;
namespace cudnn = scoremod::backend::cudnn;
using acceptance::Cell;
using acceptance::Table;

/// A build takes about a second; one that takes longer than this has hung.
constexpr int kCellSeconds = 120;

enum ExitCode { kSame = 0, kDiffers = 1, kEnvironment = 4, kSkipped = 77 };

struct Options {
  std::string devices;
  std::string tables;
  std::string markdown;
  std::string patterns;  ///< the version of cuDNN whose patterns are used; the loaded one's where they are known
  std::vector<std::string> only_devices;
  std::vector<std::string> only_modifiers;
  int workers = 2;
  bool update = false;
  bool worker = false;

  bool whole() const { return only_devices.empty() && only_modifiers.empty(); }
};

std::string read_device(const Options& options, const std::string& device) {
  const auto path = std::filesystem::path(options.devices) / (device + ".json");
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

Table answer(const Cell& cell, const Options& options) {
  try {
    const acceptance::CellResult result =
        acceptance::build_cell(cell, read_device(options, cell.device), options.patterns);
    Table row{{"verdict", result.verdict}};
    if (!result.reason.empty()) row["reason"] = result.reason;
    if (result.verdict == "built") row["workspace_bytes"] = result.workspace_bytes;
    return row;
  } catch (const scoremod::Error& failure) {
    return {{"verdict", "failed"}, {"reason", failure.what()}};
  }
}

/// Answers cell numbers from standard input, a line of JSON each.
int work(const Options& options) {
  const std::vector<Cell> all = acceptance::cells();
  std::size_t number = 0;
  while (std::cin >> number) std::cout << answer(all.at(number), options).dump() << std::endl;
  return kSame;
}

bool is_wanted(const Cell& cell, const Options& options) {
  const auto in = [](const std::vector<std::string>& names, const std::string& name) {
    return names.empty() || std::ranges::find(names, name) != names.end();
  };
  return in(options.only_devices, cell.device) && in(options.only_modifiers, cell.modifier);
}

Table build_all(const Options& options) {
  const std::vector<Cell> all = acceptance::cells();
  std::vector<std::size_t> numbers;
  std::map<std::size_t, Table> rows;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!is_wanted(all[i], options)) continue;
    numbers.push_back(i);
    rows[i] = {{"modifier", acceptance::modifier_text(all[i])},
               {"direction", acceptance::direction_text(all[i])},
               {"architecture",
                scoremod::backend::DeviceProperties::parse(read_device(options, all[i].device)).architecture()}};
  }
  const std::vector<std::string> command{
      "/proc/self/exe", "accept", "--worker", "--devices", options.devices, "--patterns-version", options.patterns};
  scoremod::explorer::run_jobs(
      command, numbers, options.workers, kCellSeconds, [&](const scoremod::explorer::JobResult& result) {
        rows[result.job].update(result.crashed ? Table{{"verdict", "crashed"}, {"reason", result.line}}
                                               : Table::parse(result.line));
      });
  Table results = Table::array();
  for (const auto& [number, row] : rows) results.push_back(row);
  return results;
}

/// The loaded version, or where that was never explored the one whose patterns are tried with it.
std::string patterns_version() {
  const std::string loaded = cudnn::version_text(cudnn::library().cudnn_version);
  return cudnn::shipped_pattern_table("sm_90", loaded, cudnn::RowClass::kManyRows).origin().cudnn_version;
}

int run(const Options& options) {
  if (!cudnn::library().available) {
    std::cerr << "skipped: " << cudnn::library().reason << "\n";
    return kSkipped;
  }
  const std::string version = cudnn::version_text(cudnn::library().cudnn_version);
  const auto path = (std::filesystem::path(options.tables) / (version + ".json")).string();
  if (!options.update && !std::filesystem::exists(path)) {
    std::cerr << "skipped: there is no table for cuDNN " << version << " (" << path << "); --update writes it\n";
    return kSkipped;
  }
  const Table found{{"cudnn", version}, {"patterns", options.patterns}, {"results", build_all(options)}};
  if (!options.markdown.empty()) std::ofstream(options.markdown) << acceptance::to_markdown(found);
  if (options.update) {
    acceptance::write_table(found, path);
    std::cout << "wrote " << found["results"].size() << " cells to " << path << "\n";
    return kSame;
  }
  const auto lines = acceptance::differences(acceptance::read_table(path), found, !options.whole());
  for (const std::string& line : lines) std::cout << line << "\n";
  std::cout << found["results"].size() << " cells with cuDNN " << version << ", " << lines.size() << " differ from "
            << path << (lines.empty() ? "\n" : "; if that is meant, rewrite it with --update\n");
  return lines.empty() ? kSame : kDiffers;
}

}  // namespace

int scoremod::cudnn_program::accept(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Build a plan of every ready-made modifier for every architecture, and compare with the committed table.",
      "scoremod_cudnn accept");
  app.add_option("--devices", options.devices, "folder of device properties")->required();
  app.add_option("--tables", options.tables, "folder of the tables, one for each version of cuDNN");
  app.add_option("--device", options.only_devices, "only this device; may be repeated");
  app.add_option("--modifier", options.only_modifiers, "only this modifier; may be repeated");
  app.add_option("--patterns-version", options.patterns,
                 "the cuDNN version whose pattern table is used; the loaded one's if left out");
  app.add_option("--markdown", options.markdown, "also write the answers as a Markdown table");
  app.add_option("--workers", options.workers, "child processes at once")->check(CLI::PositiveNumber);
  app.add_flag("--update", options.update, "write the table instead of comparing with it");
  app.add_flag("--worker", options.worker, "answer cells from standard input (used by the program itself)");
  CLI11_PARSE(app, argc, argv);
  if (options.update && !options.whole()) {
    std::cerr << "scoremod_cudnn accept: --update writes whole tables; leave out --device and --modifier\n";
    return 2;
  }
  try {
    scoremod::backend::cuda::load_stub_driver();
    if (options.patterns.empty()) options.patterns = patterns_version();
    return options.worker ? work(options) : run(options);
  } catch (const scoremod::Error& failure) {
    std::cerr << "scoremod_cudnn accept: " << to_string(failure.code()) << ": " << failure.what() << "\n";
    return kEnvironment;
  }
}
