// The cells of docs/options.md that only a device decides: every option and pair of options with every kind of modifier
// on each engine that has no objection. tools/device/options.sh runs it and keeps what it found.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/attention.hpp"
#include "scoremod/error.hpp"

#include "backend/backend.hpp"
#include "device/device_fixture.hpp"
#include "support/check_report.hpp"
#include "support/option_cases.hpp"

namespace scoremod {
namespace {

struct Cell {
  std::string backend;
  test::Option option;
  test::Modifier modifier;
};

/// In a new order each time, so that runs that end early fill the table together.
std::vector<Cell> cells() {
  std::vector<Cell> all;
  for (const backend::Backend* engine : backend::backends()) {
    if (engine->is_companion() || engine->memory().kind() == MemoryKind::kHost) continue;
    for (const test::Option& option : test::options()) {
      for (const test::Modifier& modifier : test::modifiers()) all.push_back({engine->name(), option, modifier});
    }
  }
  std::ranges::shuffle(all, std::mt19937_64(std::random_device()()));
  return all;
}

std::string ids_of(const std::vector<UnsupportedReason>& reasons) {
  std::string ids;
  for (const UnsupportedReason& reason : reasons) {
    const std::string id = "`" + reason.id + "`";
    if (ids.find(id) == std::string::npos) ids += (ids.empty() ? "" : " ") + id;
  }
  return ids;
}

/// What the page says of the cell; a failure beside it where it is wrong.
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
  std::ofstream results(path);
  const std::vector<Cell> all = cells();
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  const auto work = [&] {
    for (std::size_t i = next++; i < all.size() && std::chrono::steady_clock::now() < end; i = next++) {
      const checking::CheckCase made = test::option_case(all[i].option, all[i].modifier);
      std::pair<std::string, std::string> found;
      try {
        found = run(all[i], made);
      } catch (const Error& error) {
        found = {"error", error.what()};
      }
      const std::lock_guard lock(mutex);
      EXPECT_EQ(found.second, "") << all[i].backend << ": " << all[i].option.name << ", " << all[i].modifier.title;
      results << R"({"backend":")" << all[i].backend << R"(","option":")" << all[i].option.name << R"(","modifier":")"
              << all[i].modifier.title << R"(","case":")" << test::fingerprint(made) << R"(","cell":")"
              << (found.second.empty() ? found.first : "wrong") << "\"}\n"
              << std::flush;
    }
  };
  std::vector<std::jthread> threads;
  for (unsigned t = 1; t < std::max(1U, std::thread::hardware_concurrency()); ++t) threads.emplace_back(work);
  work();
  threads.clear();
  std::printf("%zu of %zu cells\n", std::min(next.load(), all.size()), all.size());
}

}  // namespace
}  // namespace scoremod
