// docs/options.md: each option of a problem, alone and beside each other one, with kinds of modifiers, on each backend
// in both directions. Every run computes every cell of the host's backends again, so that no number is older than the
// code.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iomanip>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "scoremod/check.hpp"

#include "backend/backend.hpp"
#include "check/zoo_cases.hpp"
#include "compiler/pipeline.hpp"
#include "support/check_report.hpp"

namespace scoremod {
namespace {

constexpr const char* kPage = SCOREMOD_TEST_SOURCE_DIR "/../docs/options.md";

/// One option: what it sets.
struct Option {
  std::string name;
  std::function<void(AttentionProblem&)> set;
};

std::vector<Option> single_options() {
  return {{"lengths",
           [](AttentionProblem& p) {
             p.lengths = {true, true};
           }},
          {"sink off_by_one", [](AttentionProblem& p) { p.sink = Sink::kOffByOne; }},
          {"sink learned", [](AttentionProblem& p) { p.sink = Sink::kLearned; }},
          {"dropout", [](AttentionProblem& p) { p.dropout = 0.25F; }},
          {"max_logit", [](AttentionProblem& p) { p.max_logit = true; }},
          {"index_offsets", [](AttentionProblem& p) { p.index_offsets = true; }},
          {"deterministic", [](AttentionProblem& p) { p.deterministic = true; }},
          {"ragged",
           [](AttentionProblem& p) {
             p.tokens_q = 61;
             p.tokens_kv = 101;
             p.q.layout = p.k.layout = p.v.layout = p.o.layout = Layout::kTHD;
           }},
          {"paged",
           [](AttentionProblem& p) {
             p.backward = false;
             p.lengths.kv = true;
             p.paged = PagedKeys{16, 13, 6};
           }},
          {"gradient layouts",
           [](AttentionProblem& p) {
             p.d_o = p.dk = TensorLayout{Layout::kBHSD, {}};
             p.dq = p.dv = TensorLayout{Layout::kSBHD, {}};
           }},
          {"dtype_o", [](AttentionProblem& p) { p.dtype_o = DType::kF32; }}};
}

/// Whether two options may stand together: one sink; keys are ragged or paged; what is paged has no gradients, and
/// ragged tensors lie in one way.
bool are_compatible(const std::string& first, const std::string& second) {
  if (first.starts_with("sink") && second.starts_with("sink")) return false;
  if (first == "ragged") return second != "paged" && second != "gradient layouts";
  return first != "paged" || second != "gradient layouts";
}

/// Each alone, then each pair that may stand together.
std::vector<Option> options() {
  const std::vector<Option> single = single_options();
  std::vector<Option> all{{"none", [](AttentionProblem&) {}}};
  all.insert(all.end(), single.begin(), single.end());
  for (std::size_t i = 0; i < single.size(); ++i) {
    for (std::size_t j = i + 1; j < single.size(); ++j) {
      if (!are_compatible(single[i].name, single[j].name)) continue;
      all.push_back({single[i].name + " + " + single[j].name, [first = single[i].set, second = single[j].set](auto& p) {
                       first(p);
                       second(p);
                     }});
    }
  }
  return all;
}

struct Modifier {
  std::string title;
  std::vector<std::string> names;
};

std::vector<Modifier> modifiers() {
  return {{"none", {}},
          {"additive", {"relative_bias", "causal"}},
          {"soft cap", {"soft_cap"}},
          {"per-head scale", {"head_temperature"}},
          {"learned operand", {"full_bias"}},
          {"documents", {"documents"}}};
}

checking::CheckCase make_case(const Option& option, const Modifier& modifier) {
  AttentionProblem problem;
  problem.batch = 2;
  problem.heads_q = 4;
  problem.heads_kv = 2;
  problem.seq_q = 40;
  problem.seq_kv = 72;
  problem.dim_qk = problem.dim_v = 16;
  problem.backward = problem.stats = true;
  option.set(problem);
  checking::CheckCase made = checking::zoo_case(modifier.names, problem, DType::kBF16);
  // Sequences that offsets or tables place are whole.
  if (problem.index_offsets)
    made.call.offsets = {0, 1, problem.tokens_q ? 0 : 4, problem.tokens_kv || problem.paged ? 0 : 8};
  made.call.dropout_seed = 12345;
  made.seed = 7;
  return made;
}

std::string number(double ratio) {
  std::ostringstream out;
  out << std::fixed << std::setprecision(2) << ratio;
  return out.str();
}

/// The largest error over its tolerance of a direction's outputs; NaN where one is wrong in kind.
double worst(const CheckReport& report, bool forward) {
  double largest = 0;
  for (const OutputCheck& output : report.outputs) {
    const bool of_forward = output.name == "o" || output.name == "lse" || output.name == "max_logit";
    if (of_forward == forward) largest = std::max(largest, output.badness());
  }
  return largest;
}

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

/// Error over tolerance where this machine runs it, the ids that refuse it where something does, "device" where only a
/// device can say.
struct Cell {
  std::string text;
  std::string failure;  ///< of a cell that was computed and is wrong
};

Cell cell_of(const backend::Backend& backend, const Option& option, const Modifier& modifier) {
  const checking::CheckCase made = make_case(option, modifier);
  if (backend.memory().kind() != MemoryKind::kHost) {
    const compiler::CompiledProblem problem = compiler::compile(made.problem);
    const std::string forward = ids(backend, problem, backend::Direction::kForward);
    if (!made.problem.backward) return {forward, ""};
    const std::string backward = ids(backend, problem, backend::Direction::kBackward);
    return {forward == backward ? forward : forward + " / " + backward, ""};
  }
  CheckOptions options;
  options.compile.backend = backend.name();
  options.seed = made.seed;
  options.call = made.call;
  options.inputs = random_inputs(made.problem, {made.seed, made.fills});
  const CheckReport report = check(made.problem, options);
  // A cell whose outputs are all zero would say nothing.
  for (const OutputCheck& output : report.outputs) {
    if (!(output.l2.scale > 0)) return {"nothing", output.name + " is zero"};
  }
  const std::string backward = made.problem.backward ? " / " + number(worst(report, false)) : "";
  return {number(worst(report, true)) + backward, report.passed() ? "" : test::describe(report)};
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
         "([unsupported_reasons.md](unsupported_reasons.md)). For engines of devices `device` stands where the engine "
         "has\n"
         "no objection of its own and a run on the device decides, which `scoremod check --suite` makes there.\n"
         "Problems are bf16 with batch 2, 4 heads over 2, 40 queries and 72 keys, head dim 16.\n"
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
