// docs/reference/options.md: each option of a problem, alone and beside each other one, with kinds of modifiers, on
// each backend in both directions. Every run computes every cell of the host's backends again, so that no number is
// older than the code.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "scoremod/check.hpp"

#include "backend/backend.hpp"
#include "compiler/pipeline.hpp"
#include "support/check_report.hpp"
#include "support/option_cases.hpp"

namespace scoremod {
namespace {

using test::Modifier;
using test::modifiers;
using test::Option;
using test::option_case;
using test::options;

constexpr const char* kPage = SCOREMOD_TEST_SOURCE_DIR "/../docs/reference/options.md";
/// What runs on devices found: tools/device/options.sh.
constexpr const char* kRecord = SCOREMOD_TEST_SOURCE_DIR "/../bench/results/options_device.json";

/// The ids of what an engine of a device has against a direction of the problem, whatever machine asks.
std::string ids(const backend::Backend& engine, const compiler::CompiledProblem& problem,
                backend::Direction direction) {
  std::string text;
  for (const UnsupportedReason& reason : engine.objections(problem, {direction, true, {}}, nullptr)) {
    if (reason.id == "no_library" || reason.id == "no_device") continue;
    const std::string id = "`" + reason.id + "`";
    if (text.find(id) == std::string::npos) text += (text.empty() ? "" : " ") + id;
  }
  return text.empty() ? "device" : text;
}

/// What a run on a device found of a cell; empty without one. A cell of another problem than today's is a failure.
std::string recorded(const std::string& backend, const Option& option, const Modifier& modifier,
                     const std::string& fingerprint, std::string& failure) {
  static const nlohmann::json kCells = [] {
    std::ifstream file(kRecord);
    return file ? nlohmann::json::parse(file).at("cells") : nlohmann::json::array();
  }();
  for (const nlohmann::json& cell : kCells) {
    if (cell.at("backend") != backend || cell.at("option") != option.name || cell.at("modifier") != modifier.title)
      continue;
    if (cell.at("case") != fingerprint)
      failure = "the run on a device is stale: make tools/device/options.sh run again";
    return cell.at("cell");
  }
  return {};
}

/// Error over tolerance where this machine runs it, the ids that refuse it where something does, "device" where only a
/// device can say.
struct Cell {
  std::string text;
  std::string failure;  ///< of a cell that was computed and is wrong
};

Cell cell_of(const backend::Backend& backend, const Option& option, const Modifier& modifier) {
  const checking::CheckCase made = option_case(option, modifier);
  if (backend.memory().kind() != MemoryKind::kHost) {
    const compiler::CompiledProblem problem = compiler::compile(made.problem);
    const std::string forward = ids(backend, problem, backend::Direction::kForward);
    const std::string backward = made.problem.backward ? ids(backend, problem, backend::Direction::kBackward) : forward;
    Cell cell{forward == backward ? forward : forward + " / " + backward, ""};
    if (cell.text.find("device") == std::string::npos) return cell;
    const std::string run = recorded(backend.name(), option, modifier, test::fingerprint(made), cell.failure);
    if (!run.empty()) cell.text = run;
    if (run == "wrong" || run == "error") cell.failure = "a run on a device found it " + run;
    return cell;
  }
  CheckOptions options;
  options.compile.backend = backend.name();
  options.seed = made.seed;
  options.call = made.call;
  options.inputs = random_inputs(made.problem, {made.seed, made.fills});
  const CheckReport report = check(made.problem, options);
  // A cell whose outputs are all zero would say nothing.
  const std::string zero = test::zero_output(report);
  if (!zero.empty()) return {"nothing", zero + " is zero"};
  return {test::text_of(made, report), report.passed() ? "" : test::describe(report)};
}

std::vector<const backend::Backend*> judged() {
  std::vector<const backend::Backend*> list;
  for (const backend::Backend* backend : backend::backends()) {
    if (!backend->is_companion()) list.push_back(backend);
  }
  return list;
}

std::string introduction() {
  return "# Options and modifiers\n\n"
         "What each option of a problem ([problem.md](problem.md)) does beside kinds of modifiers, alone and with "
         "each\n"
         "other option that may stand with it. A cell is the largest error over its tolerance of the forward's "
         "outputs, then\n"
         "of the backward's, where there is one (at most 1 is right: `scoremod/check.hpp`), or the ids of what refuses "
         "it\n"
         "([unsupported_reasons.md](unsupported_reasons.md)). Cells of devices' engines are of a run there\n"
         "([bench/results/options_device.json](../../bench/results/options_device.json), which has machine and commit, "
         "by\n"
         "`tools/device/options.sh`); `device` stands where the engine has no objection and no run was made yet.\n"
         "Problems are bf16 (with `float8`, e4m3) with batch 2, 4 heads over 2, 40 queries and 72 keys, head dim 16.\n"
         "With `given_deltas` the backward gets another o than the forward's, one that brings in a gradient of the "
         "LSE, as\n"
         "`return_lse` in Python has it.\n"
         "`tests/conformance/options_page_test.cpp` computes every cell in each run and holds it to its tolerance; "
         "the\n"
         "numbers here are of the machine that wrote the file.\n";
}

/// The page's rows for one backend, computed side by side.
std::string section_of(const backend::Backend& backend, std::vector<std::string>& failures) {
  const std::vector<Option> rows = options();
  const std::vector<Modifier> columns = modifiers();
  std::vector<Cell> cells(rows.size() * columns.size());
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < cells.size(); i = next++)
      cells[i] = cell_of(backend, rows[i / columns.size()], columns[i % columns.size()]);
  };
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 1; t < std::max(1U, std::thread::hardware_concurrency()); ++t) threads.emplace_back(work);
    work();
  }
  std::string text = std::string("\n## ") + backend.name() + "\n\n| option |";
  for (const Modifier& modifier : columns) text += " " + modifier.title + " |";
  text += "\n| --- |";
  for (std::size_t i = 0; i < columns.size(); ++i) text += " --- |";
  text += "\n";
  for (std::size_t row = 0; row < rows.size(); ++row) {
    text += "| " + rows[row].name + " |";
    for (std::size_t column = 0; column < columns.size(); ++column) {
      const Cell& cell = cells[row * columns.size() + column];
      text += " " + cell.text + " |";
      if (!cell.failure.empty())
        failures.push_back(rows[row].name + " with " + columns[column].title + " on " + backend.name() + "\n" +
                           cell.failure);
    }
    text += "\n";
  }
  return text;
}

/// The page without the sections of engines that this build does not have.
std::string of_this_build(const std::string& page) {
  std::string out;
  std::istringstream lines(page);
  bool wanted = true;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("## ")) {
      wanted = std::ranges::any_of(judged(),
                                   [&](const auto* backend) { return line == "## " + std::string(backend->name()); });
    }
    if (wanted && !line.empty()) out += line + "\n";
  }
  return out;
}

/// The page with each number that has a decimal point replaced by a mark: what must be the same on every machine.
std::string without_numbers(const std::string& page) {
  std::string out;
  for (std::size_t i = 0; i < page.size();) {
    const std::size_t end = std::min(page.find_first_not_of("0123456789.", i), page.size());
    const std::string_view token(page.data() + i, end - i);
    const std::size_t point = token.find('.');
    if (point != std::string_view::npos && point > 0 && point + 1 < token.size()) {
      out += '#';
      i = end;
    } else {
      out += page[i++];
    }
  }
  return out;
}

TEST(OptionsTable, HoldsEveryCell) {
  std::vector<std::string> failures;
  std::string page = introduction();
  for (const backend::Backend* backend : judged()) page += section_of(*backend, failures);
  EXPECT_TRUE(failures.empty()) << failures.size() << " cells are wrong, the first: " << failures.front();
  if (const char* update = std::getenv("SCOREMOD_UPDATE_GOLDEN"); update != nullptr && std::string(update) == "1") {
    std::ofstream(kPage) << page;
    return;
  }
  std::ostringstream committed;
  committed << std::ifstream(kPage).rdbuf();
  EXPECT_EQ(without_numbers(of_this_build(committed.str())), without_numbers(of_this_build(page)))
      << kPage << " has other cells: if the change is meant, run this test with SCOREMOD_UPDATE_GOLDEN=1";
}

TEST(OptionsTable, ComparesAllButNumbers) {
  EXPECT_EQ(without_numbers("| a | 0.12 / 0.50 |"), without_numbers("| a | 0.34 / 12.56 |"));
  EXPECT_NE(without_numbers("| a | 0.12 / 0.50 |"), without_numbers("| a | `sink` |"));
  EXPECT_NE(without_numbers("| a | 0.12 / 0.50 |"), without_numbers("| a |  |"));
  EXPECT_NE(without_numbers("| a | 0.12 / 0.50 |"), without_numbers("| b | 0.12 / 0.50 |"));
}

}  // namespace
}  // namespace scoremod
