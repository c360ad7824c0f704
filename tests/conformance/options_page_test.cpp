// docs/options.md: each option of a problem, alone and beside each other one, with kinds of modifiers, on each backend
// in both directions. Every run computes every cell of the host's backends again, so that no number is older than the
// code.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
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

constexpr const char* kPage = SCOREMOD_TEST_SOURCE_DIR "/../docs/options.md";
/// The results of tools/device/options.sh on devices.
constexpr const char* kRecord = SCOREMOD_TEST_SOURCE_DIR "/../bench/results/options_device.json";

/// The ids of a device backend's reasons against a direction of the problem, whatever machine asks.
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

/// A device run's result for a cell; empty without one. A cell of another problem than today's is a failure.
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
  return R"(# Options and modifiers

Which options of a problem ([problem.md](problem.md)) each engine runs, alone and beside each other one. An option that an engine does not
run has the ids of what refuses it ([unsupported_reasons.md](unsupported_reasons.md)); `device` stands where no run on a device was made yet.
Two options run together where each does alone, unless the table has the pair.

Each option and each pair was run with each kind of modifier (none, an additive one, a soft cap, a scale per head, a learned operand, documents) in
bf16 (with `float8`, e4m3), with batch 2, 4 heads over 2, 40 queries and 72 keys, head dim 16. The errors on devices, over their tolerances, are in
[bench/results/options_device.json](../bench/results/options_device.json) (by `tools/device/options.sh`); those of `cpu` and `reference`
`tests/conformance/options_page_test.cpp` computes again in each run, and holds each cell to its tolerance (`scoremod/check.hpp`).
With `given_deltas` the backward gets another o than the forward's, one that brings in a gradient of the LSE, as
`return_lse` in Python has it.
)";
}

/// "runs" for an error over its tolerance; ids and words stay.
std::string answer_of_direction(const std::string& part) {
  return !part.empty() && part.front() >= '0' && part.front() <= '9' ? "runs" : part;
}

/// A cell without its numbers, of both directions where they differ.
std::string answer_of(const std::string& cell) {
  const std::size_t bar = cell.find(" / ");
  const std::string forward = answer_of_direction(cell.substr(0, bar));
  const std::string backward = bar == std::string::npos ? forward : answer_of_direction(cell.substr(bar + 3));
  if (forward == backward) return forward;
  return "forward " + forward + ", backward " + backward;
}

/// The different answers of a row's cells, which modifiers may decide.
std::string answers_of(std::span<const Cell> cells) {
  std::vector<std::string> different;
  for (const Cell& cell : cells) {
    const std::string answer = answer_of(cell.text);
    if (std::ranges::find(different, answer) == different.end()) different.push_back(answer);
  }
  std::string text;
  for (const std::string& answer : different) text += (text.empty() ? "" : "; ") + answer;
  return text;
}

/// The ids and words of answers but for "runs" and the directions' names.
std::set<std::string> refusals_of(const std::string& answers) {
  std::set<std::string> found;
  std::istringstream words(answers);
  for (std::string word; words >> word;) {
    while (word.ends_with(',') || word.ends_with(';')) word.pop_back();
    if (word != "runs" && word != "forward" && word != "backward") found.insert(word);
  }
  return found;
}

/// The options that are refused, and the pairs whose answer does not follow from those of their options.
std::string table_of(const std::vector<std::pair<std::string, std::string>>& rows) {
  const std::string kAnd = " + ";
  std::map<std::string, std::set<std::string>> alone;
  std::string text;
  for (const auto& [option, answers] : rows) {
    const std::set<std::string> found = refusals_of(answers);
    const std::size_t place = option.find(kAnd);
    std::set<std::string> expected;
    if (place == std::string::npos) {
      alone[option] = found;
    } else {
      expected = alone[option.substr(0, place)];
      expected.merge(std::set<std::string>(alone[option.substr(place + kAnd.size())]));
    }
    if (found != expected) text += "| " + option + " | " + answers + " |\n";
  }
  return text.empty() ? "Runs every option, and every pair of options.\n"
                      : "| option | answer |\n| --- | --- |\n" + text;
}

/// The page's section of one backend, whose cells are computed side by side.
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
  std::vector<std::pair<std::string, std::string>> answers;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const std::span of_row(cells.data() + row * columns.size(), columns.size());
    answers.emplace_back(rows[row].name, answers_of(of_row));
    for (std::size_t column = 0; column < columns.size(); ++column) {
      if (!of_row[column].failure.empty())
        failures.push_back(rows[row].name + " with " + columns[column].title + " on " + backend.name() + "\n" +
                           of_row[column].failure);
    }
  }
  return std::string("\n## ") + backend.name() + "\n\n" + table_of(answers);
}

/// The page without the sections of backends that this build does not have.
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
  EXPECT_EQ(of_this_build(committed.str()), of_this_build(page))
      << kPage << " has other cells: if the change is meant, run this test with SCOREMOD_UPDATE_GOLDEN=1";
}

TEST(OptionsTable, AnswersAreCellsWithoutNumbers) {
  EXPECT_EQ(answer_of("0.12 / 0.50"), "runs");
  EXPECT_EQ(answer_of("0.12"), "runs");
  EXPECT_EQ(answer_of("`sink` `dropout`"), "`sink` `dropout`");
  EXPECT_EQ(answer_of("0.12 / `gradient_layout`"), "forward runs, backward `gradient_layout`");
  EXPECT_EQ(answers_of(std::vector<Cell>{{"0.12", ""}, {"wrong", ""}, {"0.5 / 0.6", ""}}), "runs; wrong");
}

TEST(OptionsTable, NamesPairsThatDoNotFollowFromTheirOptions) {
  const std::string all = "Runs every option, and every pair of options.\n";
  EXPECT_EQ(table_of({{"a", "runs"}, {"b", "runs"}, {"a + b", "runs"}}), all);
  const std::string alone = table_of({{"a", "`sink`"}, {"b", "runs"}, {"a + b", "`sink`"}});
  EXPECT_EQ(alone, "| option | answer |\n| --- | --- |\n| a | `sink` |\n");
  EXPECT_EQ(table_of({{"a", "`sink`"}, {"b", "runs"}, {"a + b", "runs"}}), alone + "| a + b | runs |\n");
  EXPECT_EQ(table_of({{"a", "`sink`"}, {"b", "runs"}, {"a + b", "`sink` `dtype`"}}),
            alone + "| a + b | `sink` `dtype` |\n");
  EXPECT_EQ(table_of({{"a", "runs"}, {"b", "runs"}, {"a + b", "runs; wrong"}}),
            "| option | answer |\n| --- | --- |\n| a + b | runs; wrong |\n");
}

}  // namespace
}  // namespace scoremod
