// docs/reference/options.md: which options of a problem each backend takes. Every run computes every option, alone and
// beside each other one, with kinds of modifiers, on the host's backends. Cells of devices come from their record.

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
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
/// The results of runs on devices (tools/device/options.sh).
constexpr const char* kRecord = SCOREMOD_TEST_SOURCE_DIR "/../bench/results/options_device.json";

using Ids = std::set<std::string>;

/// Why a backend refuses each direction; nothing where it runs it.
struct Answer {
  Ids forward;
  Ids backward;
  bool was_run = true;  ///< false: nothing refuses it, and no device has run it yet

  bool operator==(const Answer&) const = default;
};

Answer both(Answer one, const Answer& other) {
  one.forward.insert(other.forward.begin(), other.forward.end());
  one.backward.insert(other.backward.begin(), other.backward.end());
  // A device runs nothing of what is refused.
  const bool refused = !one.forward.empty() && !one.backward.empty();
  one.was_run = refused || (one.was_run && other.was_run);
  return one;
}

std::string text_of(const Ids& ids) {
  std::string text;
  for (const std::string& id : ids) text += (text.empty() ? "`" : ", `") + id + "`";
  return text;
}

std::string text_of(const Answer& answer) {
  if (!answer.forward.empty()) return "refused: " + text_of(answer.forward);
  const std::string runs = answer.was_run ? "yes" : "not run yet";
  return answer.backward.empty() ? runs : runs + ", backward refused: " + text_of(answer.backward);
}

/// The reasons why a backend of a device refuses a direction of the problem, whatever machine asks.
Ids ids(const backend::Backend& engine, const compiler::CompiledProblem& problem, backend::Direction direction) {
  Ids found;
  for (const UnsupportedReason& reason : engine.objections(problem, {direction, true, {}}, nullptr)) {
    if (reason.id != "no_library" && reason.id != "no_device") found.emplace(reason.id);
  }
  return found;
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

/// The answer of a backend to one option or pair and one kind of modifier.
struct Cell {
  Answer answer;
  std::string failure;  ///< of a cell that was computed and is wrong, here or on a device
};

Cell device_cell(const backend::Backend& backend, const checking::CheckCase& made, const Option& option,
                 const Modifier& modifier) {
  const compiler::CompiledProblem problem = compiler::compile(made.problem);
  Cell cell;
  cell.answer.forward = ids(backend, problem, backend::Direction::kForward);
  cell.answer.backward =
      made.problem.backward ? ids(backend, problem, backend::Direction::kBackward) : cell.answer.forward;
  if (!cell.answer.forward.empty() && !cell.answer.backward.empty()) return cell;
  const std::string run = recorded(backend.name(), option, modifier, test::fingerprint(made), cell.failure);
  cell.answer.was_run = !run.empty();
  if (run == "wrong" || run == "error") cell.failure = "a run on a device found it " + run;
  return cell;
}

Cell cell_of(const backend::Backend& backend, const Option& option, const Modifier& modifier) {
  const checking::CheckCase made = option_case(option, modifier);
  if (backend.memory().kind() != MemoryKind::kHost) return device_cell(backend, made, option, modifier);
  CheckOptions options;
  options.compile.backend = backend.name();
  options.seed = made.seed;
  options.call = made.call;
  options.inputs = random_inputs(made.problem, {made.seed, made.fills});
  const CheckReport report = check(made.problem, options);
  // A cell whose outputs are all zero would say nothing.
  const std::string zero = test::zero_output(report);
  if (!zero.empty()) return {{}, zero + " is zero"};
  return {{}, report.passed() ? "" : test::describe(report)};
}

std::vector<const backend::Backend*> judged() {
  std::vector<const backend::Backend*> list;
  for (const backend::Backend* backend : backend::backends()) {
    if (!backend->is_companion()) list.push_back(backend);
  }
  return list;
}

constexpr const char* kIntroduction =
    "# Options\n\n"
    "You can see here which backend takes which option of a [problem](problem.md).\n\n"
    "```json\n"
    "{\"batch\": 1, \"heads_q\": 2, \"seq_q\": 8, \"dim_qk\": 16, \"sink\": \"learned\", \"dropout\": 0.1}\n"
    "```\n\n"
    "What refuses an option is the id of an [unsupported reason](unsupported_reasons.md).\n\n";

constexpr const char* kPairs =
    "\nTwo options together are refused where one of them is, and run otherwise.\n"
    "A test tries each option and each pair that may stand together with six kinds of modifiers, in both directions.\n"
    "Backends of the host run in each test, those of devices in `tools/device/options.sh`\n"
    "([record](../../bench/results/options_device.json)). Problems are bf16 (with `float8`, e4m3): batch 2, 4 heads\n"
    "over 2, 40 queries, 72 keys, head dim 16.\n";

/// The answers of one backend to all options, in their order. Kinds of modifiers must not differ.
std::vector<Answer> answers_of(const backend::Backend& backend, std::vector<std::string>& failures) {
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
  std::vector<Answer> answers;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const std::string where = rows[i / columns.size()].name + " with " + columns[i % columns.size()].title + " on " +
                              std::string(backend.name()) + "\n";
    if (i % columns.size() == 0) answers.push_back(cells[i].answer);
    if (!cells[i].failure.empty()) failures.push_back(where + cells[i].failure);
    if (cells[i].answer != answers.back()) failures.push_back(where + "is answered otherwise than other modifiers");
  }
  return answers;
}

/// The rows of single options; what of pairs is not as the page says goes to `failures`.
std::vector<std::string> rows_of(const backend::Backend& backend, std::vector<std::string>& failures) {
  const std::vector<Option> all = options();
  const std::vector<Answer> answers = answers_of(backend, failures);
  std::map<std::string, Answer> single;
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t plus = all[i].name.find(" + ");
    if (plus == std::string::npos) {
      single[all[i].name] = answers[i];
      texts.push_back(text_of(answers[i]));
      continue;
    }
    const Answer expected = both(single.at(all[i].name.substr(0, plus)), single.at(all[i].name.substr(plus + 3)));
    if (answers[i] != expected)
      failures.push_back(all[i].name + " on " + backend.name() + ": " + text_of(answers[i]) +
                         ", and its options alone are " + text_of(expected));
  }
  return texts;
}

using Table = std::vector<std::vector<std::string>>;

std::string text_of(const Table& table) {
  std::string text;
  for (std::size_t row = 0; row < table.size(); ++row) {
    text += "|";
    for (const std::string& cell : table[row]) text += " " + cell + " |";
    text += "\n";
    if (row > 0) continue;
    text += "|";
    for (std::size_t i = 0; i < table[0].size(); ++i) text += " --- |";
    text += "\n";
  }
  return text;
}

/// A page's table without the columns of backends that this build does not have.
std::string of_this_build(const std::string& page) {
  const auto is_built = [](const std::string& name) {
    return std::ranges::any_of(judged(), [&](const auto* backend) { return name == backend->name(); });
  };
  std::string out;
  std::vector<bool> wanted;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("|")) {
      out += line + "\n";
      continue;
    }
    std::istringstream cells(line.substr(1));
    std::string kept = "|";
    std::size_t column = 0;
    const bool is_header = wanted.empty();
    for (std::string cell; std::getline(cells, cell, '|'); ++column) {
      if (is_header) wanted.push_back(column == 0 || is_built(cell.substr(1, cell.size() - 2)));
      if (wanted[column]) kept += cell + "|";
    }
    out += kept + "\n";
  }
  return out;
}

TEST(OptionsTable, HoldsEveryCell) {
  std::vector<std::string> failures;
  Table table{{"option"}};
  for (const Option& option : options()) {
    if (option.name.find(" + ") == std::string::npos) table.push_back({option.name});
  }
  for (const backend::Backend* backend : judged()) {
    table[0].push_back(backend->name());
    const std::vector<std::string> rows = rows_of(*backend, failures);
    for (std::size_t i = 0; i < rows.size(); ++i) table[i + 1].push_back(rows[i]);
  }
  EXPECT_TRUE(failures.empty()) << failures.size() << " cells are wrong, the first: " << failures.front();
  const std::string page = kIntroduction + text_of(table) + kPairs;
  if (const char* update = std::getenv("SCOREMOD_UPDATE_GOLDEN"); update != nullptr && std::string(update) == "1") {
    std::ofstream(kPage) << page;
    return;
  }
  std::ostringstream committed;
  committed << std::ifstream(kPage).rdbuf();
  EXPECT_EQ(of_this_build(committed.str()), page)
      << kPage << " has other cells: if the change is meant, run this test with SCOREMOD_UPDATE_GOLDEN=1";
}

TEST(OptionsTable, NamesWhatRefuses) {
  EXPECT_EQ(text_of(Answer{}), "yes");
  EXPECT_EQ(text_of(Answer{{}, {}, false}), "not run yet");
  EXPECT_EQ(text_of(Answer{{}, {"gradient_layout"}}), "yes, backward refused: `gradient_layout`");
  EXPECT_EQ(text_of(both({{"sink"}, {"sink"}}, {{"dropout"}, {}})), "refused: `dropout`, `sink`");
}

TEST(OptionsTable, LeavesOutBackendsThatAreNotBuilt) {
  EXPECT_EQ(of_this_build("a\n| option | none_such | cpu |\n| --- | --- | --- |\n| sink | yes | no |\n"),
            "a\n| option | cpu |\n| --- | --- |\n| sink | no |\n");
}

}  // namespace
}  // namespace scoremod
