// The pattern explorer: tries every candidate pattern of writing a modifier for cuDNN on the current device, each in a
// child process. It compares them with the float64 oracle and writes the table that the cuDNN lowering reads. See
// docs/internals/cudnn.md.

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <thread>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "scoremod/error.hpp"

#include "backend/cuda/device/device.hpp"
#include "backend/cudnn/graph/library.hpp"
#include "backend/cudnn/patterns/pattern_table.hpp"
#include "backend/cudnn/patterns/score_work.hpp"
#include "tools/cudnn/commands.hpp"
#include "tools/cudnn/list_verdicts.hpp"
#include "tools/cudnn/run_case.hpp"
#include "tools/cudnn/worker_pool.hpp"

namespace {

using scoremod::backend::Direction;
using scoremod::explorer::CaseResult;
using scoremod::explorer::PatternCase;
using scoremod::explorer::Setting;
using Json = nlohmann::ordered_json;
namespace cuda = scoremod::backend::cuda;
namespace cudnn = scoremod::backend::cudnn;
namespace explorer = scoremod::explorer;

std::string architecture_name() { return "sm_" + std::to_string(cuda::current_device().compute_capability); }
std::string cudnn_version() { return cudnn::version_text(cudnn::library().cudnn_version); }

/// One pattern in one setting and direction.
struct Job {
  PatternCase pattern;
  Setting setting;
  Direction direction;
};

/// A job that takes longer has hung.
constexpr int kJobSeconds = 120;

/// The options of a run.
struct Options {
  std::string output = "cudnn_patterns.json";
  std::string machine;  ///< noted in the table
  std::string commit;   ///< likewise: of the sources that the explorer was built from
  int workers = static_cast<int>(std::thread::hardware_concurrency());
  bool timed = false;
  bool programs = true;               ///< also whole programs, in the patterns that were right
  std::vector<std::string> prefixes;  ///< of the patterns to try; empty for all
  std::vector<std::string> left_out;  ///< parts of the names of patterns not to try
  std::string verdicts;               ///< the plan store to list, instead
  std::string work_of;                ///< the cuDNN version whose patterns' work to list, instead
  std::string table;                  ///< a worker's: the right patterns, for the cases in_right_patterns
};

bool is_wanted(const std::string& pattern, const Options& options) {
  const auto contains = [&](const std::string& part) { return pattern.find(part) != std::string::npos; };
  if (std::ranges::any_of(options.left_out, contains)) return false;
  return options.prefixes.empty() ||
         std::ranges::any_of(options.prefixes, [&](const std::string& prefix) { return pattern.starts_with(prefix); });
}

/// Every job, in an order that parent and workers share.
std::vector<Job> jobs() {
  std::vector<Job> all;
  for (const PatternCase& pattern : explorer::pattern_cases()) {
    for (const Setting& setting : explorer::settings()) {
      if (!pattern.has_gradient()) all.push_back({pattern, setting, Direction::kForward});
      all.push_back({pattern, setting, Direction::kBackward});
    }
  }
  return all;
}

const char* to_string(Direction direction) { return direction == Direction::kForward ? "forward" : "backward"; }

Json describe(const Job& job) {
  return {{"pattern", job.pattern.name},
          {"direction", to_string(job.direction)},
          {"setting", job.setting.name},
          {"program", job.pattern.program},
          {"operand_dtype", scoremod::to_string(job.pattern.dtype_of_operands(job.setting.dtype))}};
}

double four_digits(double value) {
  return value == 0 || !std::isfinite(value) ? value : std::stod(std::to_string(static_cast<float>(value)));
}

/// The step that refused and its first reason: cuDNN goes on to list every engine.
std::string first_reason(const std::string& text) {
  constexpr std::string_view kMark = "Reason: ";
  constexpr std::size_t kLongest = 240;
  const std::string step = text.substr(0, text.find(':'));
  const std::size_t mark = text.find(kMark);
  const std::string reason = mark == std::string::npos ? text.substr(std::min(step.size() + 2, text.size()))
                                                       : text.substr(mark + kMark.size());
  return (step + ": " + reason.substr(0, reason.find('\n'))).substr(0, kLongest);
}

/// Which patterns a job's lowering may use.
class RightPatterns {
 public:
  /// For patterns that a table lacks, the table that ships with the library for this version, or the nearest, decides.
  explicit RightPatterns(const std::string& file) {
    if (file.empty()) return;
    std::ifstream stream(file);
    const std::string json{std::istreambuf_iterator<char>(stream), {}};
    const std::string architecture = architecture_name(), version = cudnn_version();
    for (const cudnn::RowClass rows : {cudnn::RowClass::kManyRows, cudnn::RowClass::kOneRow}) {
      tables_.push_back({cudnn::PatternTable::parse(json, architecture, version, rows),
                         cudnn::shipped_pattern_table(architecture, version, rows)});
    }
  }

  cudnn::PatternFilter of(const PatternCase& pattern, std::int64_t seq_q, Direction direction) const {
    // The plain way to give an operand is a pattern of its own, which a mutation makes.
    if (!pattern.in_right_patterns) return [](std::string_view name) { return !name.ends_with(".as_declared"); };
    return [&tables = tables_.at(seq_q == 1 ? 1 : 0), direction](std::string_view name) {
      const cudnn::PatternVerdict found = tables.found.find(name, direction);
      const cudnn::PatternVerdict verdict =
          found == cudnn::PatternVerdict::kUnknown ? tables.shipped.find(name, direction) : found;
      return verdict == cudnn::PatternVerdict::kRight;
    };
  }

 private:
  struct Tables {
    cudnn::PatternTable found, shipped;
  };
  std::vector<Tables> tables_;  ///< for many rows, and for one
};

Json judged(const Job& job, const cudnn::PatternFilter& allowed) {
  const CaseResult result = explorer::run_case(job.pattern, job.setting, job.direction, allowed);
  Json row{{"verdict", result.verdict}, {"nodes", result.nodes}, {"error", nullptr}, {"ms", nullptr}};
  if (!result.text.empty()) row["text"] = first_reason(result.text);
  // The output that is worst beside its tolerance speaks for the case; NaN is the worst.
  double worst = -1;
  for (const explorer::OutputError& output : result.outputs) {
    const double ratio = output.error / output.tolerance;
    if (ratio <= worst) continue;
    worst = std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio;
    row["output"] = output.name;
    if (!output.rows.empty()) row["rows"] = output.rows;
    row["error"] = std::isnan(output.error) ? Json("nan") : Json(four_digits(output.error));
    row["tolerance"] = four_digits(output.tolerance);
  }
  return row;
}

Json answer(const Job& job, const RightPatterns& right, bool timed) {
  try {
    const cudnn::PatternFilter allowed = right.of(job.pattern, timed ? 0 : job.setting.seq_q, job.direction);
    if (timed) return {{"ms", four_digits(explorer::time_case(job.pattern, job.direction, allowed))}};
    return judged(job, allowed);
  } catch (const scoremod::Error& failure) {
    return {{"verdict", "failed"}, {"error", nullptr}, {"ms", nullptr}, {"text", failure.what()}};
  }
}

/// Answers job numbers from standard input, a line of JSON each.
int work(const Options& options) {
  const std::vector<Job> all = jobs();
  const RightPatterns right(options.table);
  std::size_t number = 0;
  while (std::cin >> number) std::cout << answer(all.at(number), right, options.timed).dump() << std::endl;
  return 0;
}

/// The rows of the table by the number of their job.
using Rows = std::map<std::size_t, Json>;

/// The known patterns that a run must find again, and did not.
std::vector<std::string> missed_known_patterns(const Rows& rows, const Options& options) {
  std::vector<std::string> missed;
  for (const explorer::KnownPattern& known : explorer::known_bad_patterns()) {
    if (!is_wanted(known.name, options)) continue;
    bool found = false;
    for (const auto& [number, row] : rows) {
      found = found || (row["pattern"] == known.name && (row["direction"] == "backward") == known.backward &&
                        row["verdict"] == known.verdict);
    }
    if (!found) missed.push_back(known.name + (known.backward ? " backward: " : " forward: ") + known.verdict);
  }
  return missed;
}

void judge(const std::vector<std::string>& command, const std::vector<std::size_t>& numbers, int workers, Rows& rows) {
  std::size_t done = 0;
  explorer::run_jobs(command, numbers, workers, kJobSeconds, [&](const explorer::JobResult& result) {
    rows[result.job].update(
        result.crashed ? Json{{"verdict", "crashed"}, {"error", nullptr}, {"ms", nullptr}, {"text", result.line}}
                       : Json::parse(result.line));
    if (++done % 100 == 0) std::cerr << done << " of " << numbers.size() << "\n";
  });
}

/// The command of a child process that answers jobs.
std::vector<std::string> worker(const std::vector<std::string>& arguments) {
  std::vector<std::string> command{"/proc/self/exe", "explore", "--worker"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

/// Times the right patterns, one case after the other: on a device that does nothing else.
void time_all(const std::string& table, Rows& rows) {
  std::vector<std::size_t> right;
  for (const auto& [number, row] : rows) {
    if (row["setting"] == "base" && row["verdict"] == "right") right.push_back(number);
  }
  explorer::run_jobs(worker({"--timed", "--table", table}), right, 1, kJobSeconds,
                     [&](const explorer::JobResult& result) {
                       if (!result.crashed) rows[result.job].update(Json::parse(result.line));
                     });
}

/// The rows that have a verdict, one a line, so that a change of the table reads well.
void write_table(const Options& options, const std::string& device, const Rows& rows) {
  std::ofstream file(options.output);
  file << "{\"machine\": " << Json(options.machine) << ", \"device\": " << Json(device)
       << ", \"commit\": " << Json(options.commit) << ",\n\"results\": [";
  const char* separator = "\n";
  for (const auto& [number, row] : rows) {
    if (!row.contains("verdict")) continue;
    file << separator << row.dump();
    separator = ",\n";
  }
  file << "\n]}\n";
}

int summarize(const Options& options, const Rows& rows) {
  std::map<std::string, int> counts;
  for (const auto& [number, row] : rows) ++counts[row["verdict"].get<std::string>()];
  for (const auto& [verdict, count] : counts) std::cout << verdict << ": " << count << "\n";
  const std::vector<std::string> missed = missed_known_patterns(rows, options);
  for (const std::string& name : missed) std::cout << "not found again: " << name << "\n";
  return missed.empty() ? 0 : 1;
}

/// First each pattern by itself, then whole programs in those patterns that were right.
int try_all(const Options& options) {
  const std::vector<Job> all = jobs();
  const std::string device = cuda::current_device().name;
  const Json head{{"architecture", architecture_name()}, {"cudnn", cudnn_version()}};
  Rows rows;
  std::vector<std::size_t> patterns, programs;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (!is_wanted(all[i].pattern.name, options) || (all[i].pattern.in_right_patterns && !options.programs)) continue;
    rows[i] = describe(all[i]);
    rows[i].update(head);
    (all[i].pattern.in_right_patterns ? programs : patterns).push_back(i);
  }
  std::cerr << patterns.size() << " cases of patterns, " << programs.size() << " of whole programs\n";
  judge(worker({}), patterns, options.workers, rows);
  write_table(options, device, rows);
  judge(worker({"--table", options.output}), programs, options.workers, rows);
  if (options.timed) time_all(options.output, rows);
  write_table(options, device, rows);
  return summarize(options, rows);
}

/// For tools/fit_score_costs.py: the work of each --timed case's modifier in a kernel, a line of JSON each.
int list_work(const std::string& cudnn_version) {
  const auto table = cudnn::shipped_pattern_table("sm_90", cudnn_version, cudnn::RowClass::kManyRows);
  for (const PatternCase& pattern : explorer::pattern_cases()) {
    for (const Direction direction : {Direction::kForward, Direction::kBackward}) {
      const auto is_right = [&](std::string_view name) {
        return table.find(name, direction) == cudnn::PatternVerdict::kRight;
      };
      const auto as_given = [](std::string_view name) { return !name.ends_with(".as_declared"); };
      const auto modifier = explorer::timed_modifier(
          pattern, direction,
          pattern.in_right_patterns ? cudnn::PatternFilter(is_right) : cudnn::PatternFilter(as_given));
      if (!modifier) continue;
      const bool band = std::ranges::any_of(modifier->nodes, [](const auto& node) { return node.band.has_value(); });
      std::cout << Json{{"pattern", pattern.name},
                        {"direction", to_string(direction)},
                        {"program", pattern.program},
                        {"band", band},
                        {"gradient", pattern.has_gradient()},
                        {"work", cudnn::score_work(*modifier)}}
                       .dump()
                << "\n";
    }
  }
  return 0;
}

int list_right(const Options& options) {
  const int count = explorer::list_verdicts(options.verdicts, architecture_name(), cudnn_version(), options.machine,
                                            options.commit, options.output);
  std::cout << count << " lowerings were right\n";
  return count > 0 ? 0 : 1;
}

}  // namespace

int scoremod::cudnn_program::explore(int argc, char** argv) {
  CLI::App app{"Tries patterns of cuDNN score modifiers on this device and writes the table of what is right",
               "scoremod_cudnn explore"};
  Options options;
  bool is_worker = false;
  app.add_option("-o,--output", options.output, "the JSON file to write");
  app.add_option("--machine", options.machine, "what to note as the machine");
  app.add_option("--commit", options.commit, "what to note as the commit that the explorer was built from");
  app.add_option("--workers", options.workers, "child processes at once")->check(CLI::PositiveNumber);
  app.add_option("--without", options.left_out, "leave out patterns whose names contain one of these");
  app.add_option("--patterns", options.prefixes, "try only patterns whose names begin so; all of them by default");
  app.add_flag("!--no-programs", options.programs,
               "leave out whole programs, which are tried in the patterns that were right");
  app.add_flag("--timed", options.timed,
               "also time each right pattern at batch 4, heads 16, sequence 4096, head dim 128");
  app.add_option("--table", options.table, "what a worker takes for right (used by the explorer itself)");
  app.add_option(
      "--verdicts", options.verdicts,
      "instead: the plan store whose trial runs the output is to list, for src/backend/cudnn/patterns/verdicts");
  app.add_option("--work", options.work_of,
                 "instead: list what each timed case makes a kernel do, in the patterns of this version of cuDNN");
  app.add_flag("--worker", is_worker, "answer jobs from standard input (used by the explorer itself)");
  CLI11_PARSE(app, argc, argv);
  try {
    if (!options.work_of.empty()) return list_work(options.work_of);
    if (!options.verdicts.empty()) return list_right(options);
    return is_worker ? work(options) : try_all(options);
  } catch (const scoremod::Error& failure) {
    std::cerr << "scoremod_cudnn explore: " << to_string(failure.code()) << ": " << failure.what() << "\n";
    return 4;
  }
}
