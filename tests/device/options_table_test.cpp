// The cells of docs/reference/options.md that only a device decides. They are every option and pair of options with
// every kind of modifier on each backend that has no objection. tools/device/options.sh runs it and keeps the results.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "scoremod/attention.hpp"
#include "scoremod/error.hpp"

#include "backend/backend.hpp"
#include "device/device_fixture.hpp"
#include "support/check_report.hpp"
#include "support/option_cases.hpp"
#include "support/test_seed.hpp"

namespace scoremod {
namespace {

struct Cell {
  std::string backend;
  test::Option option;
  test::Modifier modifier;
};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// The record's cells as they are today: the commit of each one's last run. A wrong result counts as not run.
std::map<std::string, std::string> recorded_commits() {
  std::map<std::string, std::string> commits;
  std::ifstream file(variable("SCOREMOD_OPTIONS_RECORD"));
  if (!file) return commits;
  for (const nlohmann::json& cell : nlohmann::json::parse(file).at("cells")) {
    if (cell.at("cell") == "wrong") continue;
    commits[cell.at("backend").get<std::string>() + ' ' + cell.at("case").get<std::string>()] = cell.at("commit");
  }
  return commits;
}

/// This process's share of the cells that the record lacks for this commit, those that never ran first. The order is
/// new each time, so that runs that end early fill the table together.
std::vector<Cell> cells() {
  std::vector<Cell> never, before;
  const std::map<std::string, std::string> commits = recorded_commits();
  const std::string wanted = variable("SCOREMOD_OPTIONS_COMMIT");
  for (const backend::Backend* engine : backend::backends()) {
    if (engine->is_companion() || engine->memory().kind() == MemoryKind::kHost) continue;
    for (const test::Option& option : test::options()) {
      for (const test::Modifier& modifier : test::modifiers()) {
        const std::string made = test::fingerprint(test::option_case(option, modifier));
        const auto found = commits.find(std::string(engine->name()) + ' ' + made);
        if (found == commits.end()) {
          never.push_back({engine->name(), option, modifier});
        } else if (wanted != "any" && found->second != wanted) {
          before.push_back({engine->name(), option, modifier});
        }
      }
    }
  }
  std::mt19937_64 random(test::test_seed());
  std::ranges::shuffle(never, random);
  std::ranges::shuffle(before, random);
  never.insert(never.end(), before.begin(), before.end());
  std::size_t part = 0, parts = 1;
  std::istringstream(variable("SCOREMOD_OPTIONS_PART")) >> part >> parts;
  std::vector<Cell> share;
  for (std::size_t i = part; i < never.size(); i += parts) share.push_back(never[i]);
  return share;
}

std::string ids_of(const std::vector<UnsupportedReason>& reasons) {
  std::string ids;
  for (const UnsupportedReason& reason : reasons) {
    const std::string id = "`" + reason.id + "`";
    if (ids.find(id) == std::string::npos) ids += (ids.empty() ? "" : " ") + id;
  }
  return ids;
}

/// Runs the cell and returns its entry of the page, with a failure beside it if it is wrong.
std::pair<std::string, std::string> run(const Cell& cell, const checking::CheckCase& made) {
  CheckOptions options;
  options.compile.backend = cell.backend;
  options.seed = made.seed;
  options.call = made.call;
  checking::CheckCase run = made;
  std::string refused;
  for (const Support& answer : support(made.problem, options.compile)) {
    if (answer.backend != cell.backend || answer.supported) continue;
    if (!answer.forward_supported) return {ids_of(answer.reasons), ""};
    run.problem.backward = false;
    refused = " / " + ids_of(answer.reasons);
  }
  options.inputs = random_inputs(run.problem, {made.seed, made.fills});
  const CheckReport report = check(run.problem, options);
  const std::string zero = test::zero_output(report);
  if (!zero.empty()) return {"nothing", zero + " is zero"};
  return {test::text_of(run, report) + refused, report.passed() ? "" : test::describe(report)};
}

class DeviceOptions : public test::OnDevice {};

TEST_F(DeviceOptions, Run) {
  const char* path = std::getenv("SCOREMOD_OPTIONS_RESULTS");
  if (path == nullptr) GTEST_SKIP() << "takes a minute and more: tools/device/options.sh runs it";
  const char* seconds = std::getenv("SCOREMOD_OPTIONS_SECONDS");
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds ? std::atoi(seconds) : 60);
  const int given = std::atoi(variable("SCOREMOD_OPTIONS_THREADS").c_str());
  const unsigned thread_count = given > 0 ? static_cast<unsigned>(given) : std::thread::hardware_concurrency();
  std::ofstream results(path);
  const std::vector<Cell> all = cells();
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::vector<Cell> again;
  const auto keep = [&](const Cell& cell, const checking::CheckCase& made,
                        const std::pair<std::string, std::string>& found) {
    const std::lock_guard lock(mutex);
    EXPECT_EQ(found.second, "") << cell.backend << ": " << cell.option.name << ", " << cell.modifier.title;
    results << R"({"backend":")" << cell.backend << R"(","option":")" << cell.option.name << R"(","modifier":")"
            << cell.modifier.title << R"(","case":")" << test::fingerprint(made) << R"(","cell":")"
            << (found.second.empty() ? found.first : "wrong") << "\"}\n"
            << std::flush;
  };
  const auto work = [&] {
    for (std::size_t i = next++; i < all.size() && std::chrono::steady_clock::now() < end; i = next++) {
      const checking::CheckCase made = test::option_case(all[i].option, all[i].modifier);
      try {
        keep(all[i], made, run(all[i], made));
      } catch (const Error&) {
        const std::lock_guard lock(mutex);
        again.push_back(all[i]);
      }
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned t = 1; t < thread_count; ++t) threads.emplace_back(work);
  work();
  threads.clear();
  // While cuDNN makes a plan in one thread, it may capture a stream, and then forbids others the default stream, which
  // checks use. Cells that failed so run once more, alone.
  for (const Cell& cell : again) {
    const checking::CheckCase made = test::option_case(cell.option, cell.modifier);
    std::printf("run again: %s: %s, %s\n", cell.backend.c_str(), cell.option.name.c_str(), cell.modifier.title.c_str());
    try {
      keep(cell, made, run(cell, made));
    } catch (const Error& error) {
      keep(cell, made, {"error", error.what()});
    }
  }
  std::printf("%zu of %zu cells\n", std::min(next.load(), all.size()), all.size());
}

}  // namespace
}  // namespace scoremod
