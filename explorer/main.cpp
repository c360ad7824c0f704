// The form explorer: tries every candidate form of writing a modifier for cuDNN on the current device, each in a child
// process, against the float64 oracle, and writes the table that the cuDNN lowering reads. See docs/cudnn_forms.md.

#include <cmath>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <numeric>
#include <thread>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "scoremod/error.hpp"

#include "backend/cuda/device.hpp"
#include "backend/cudnn/library.hpp"
#include "explorer/run_case.hpp"
#include "explorer/worker_pool.hpp"

namespace {

using scoremod::backend::Direction;
using scoremod::explorer::CaseResult;
using scoremod::explorer::FormCase;
using scoremod::explorer::Setting;
using Json = nlohmann::ordered_json;
namespace cuda = scoremod::backend::cuda;
namespace cudnn = scoremod::backend::cudnn;
namespace explorer = scoremod::explorer;

/// One form in one setting and direction.
struct Job {
  FormCase form;
  Setting setting;
  Direction direction;
};

/// A job that takes longer has hung.
constexpr int kJobSeconds = 120;

std::vector<Job> jobs() {
  std::vector<Job> all;
  for (const FormCase& form : explorer::form_cases()) {
    for (const Setting& setting : explorer::settings()) {
      all.push_back({form, setting, Direction::kForward});
      all.push_back({form, setting, Direction::kBackward});
    }
  }
  return all;
}

const char* to_string(Direction direction) { return direction == Direction::kForward ? "forward" : "backward"; }

Json describe(const Job& job) {
  return {{"form", job.form.form},
          {"direction", to_string(job.direction)},
          {"setting", job.setting.name},
          {"program", job.form.program},
          {"operand_dtype", scoremod::to_string(job.form.operand_dtype)}};
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

Json judged(const Job& job) {
  const CaseResult result = explorer::run_case(job.form, job.setting, job.direction);
  Json row{{"verdict", result.verdict}, {"error", nullptr}, {"ms", nullptr}};
  if (!result.text.empty()) row["text"] = first_reason(result.text);
  // The output that is worst beside its tolerance speaks for the case; NaN is the worst.
  double worst = -1;
  for (const explorer::OutputError& output : result.outputs) {
    const double ratio = output.error / output.tolerance;
    if (ratio <= worst) continue;
    worst = std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio;
    row["output"] = output.output;
    row["error"] = std::isnan(output.error) ? Json("nan") : Json(four_digits(output.error));
    row["tolerance"] = four_digits(output.tolerance);
  }
  return row;
}

Json answer(const Job& job, bool timed) {
  try {
    if (timed) return {{"ms", four_digits(explorer::time_case(job.form, job.direction))}};
    return judged(job);
  } catch (const scoremod::Error& failure) {
    return {{"verdict", "failed"}, {"error", nullptr}, {"ms", nullptr}, {"text", failure.what()}};
  }
}

/// Answers job numbers from standard input, a line of JSON each.
int work(bool timed) {
  const std::vector<Job> all = jobs();
  std::size_t number = 0;
  while (std::cin >> number) std::cout << answer(all.at(number), timed).dump() << std::endl;
  return 0;
}

/// What a run must find again, and did not.
std::vector<std::string> missed_known_forms(const std::vector<Json>& results) {
  std::vector<std::string> missed;
  for (const explorer::KnownForm& known : explorer::known_bad_forms()) {
    bool found = false;
    for (const Json& row : results) {
      found = found || (row["form"] == known.form && (row["direction"] == "backward") == known.backward &&
                        row["verdict"] == known.verdict);
    }
    if (!found) missed.push_back(known.form + (known.backward ? " backward: " : " forward: ") + known.verdict);
  }
  return missed;
}

void judge_all(const std::string& self, const std::vector<Job>& all, int workers, std::vector<Json>& rows) {
  std::size_t done = 0;
  std::vector<std::size_t> numbers(all.size());
  std::iota(numbers.begin(), numbers.end(), std::size_t{0});
  explorer::run_jobs({self, "--worker"}, numbers, workers, kJobSeconds, [&](const explorer::JobResult& result) {
    rows[result.job].update(
        result.crashed ? Json{{"verdict", "crashed"}, {"error", nullptr}, {"ms", nullptr}, {"text", result.line}}
                       : Json::parse(result.line));
    if (++done % 100 == 0) std::cerr << done << " of " << all.size() << "\n";
  });
}

/// Times what is right, one case after the other: on a device that does nothing else.
void time_all(const std::string& self, const std::vector<Job>& all, std::vector<Json>& rows) {
  std::vector<std::size_t> right;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].setting.name == "base" && rows[i]["verdict"] == "right") right.push_back(i);
  }
  explorer::run_jobs({self, "--worker", "--timed"}, right, 1, kJobSeconds, [&](const explorer::JobResult& result) {
    if (!result.crashed) rows[result.job].update(Json::parse(result.line));
  });
}

int explore(const std::string& self, const std::string& output, int workers, bool timed, const std::string& machine) {
  const std::vector<Job> all = jobs();
  const cuda::DeviceInfo device = cuda::current_device();
  const Json head{{"architecture", "sm_" + std::to_string(device.compute_capability)},
                  {"cudnn", cudnn::version_text(cudnn::library().cudnn_version)}};
  std::vector<Json> rows;
  for (const Job& job : all) {
    rows.push_back(describe(job));
    rows.back().update(head);
  }
  judge_all(self, all, workers, rows);
  if (timed) time_all(self, all, rows);
  std::map<std::string, int> counts;
  for (const Json& row : rows) ++counts[row["verdict"].get<std::string>()];
  // One row a line, so that a change of the table reads well.
  std::ofstream file(output);
  file << "{\"machine\": " << Json(machine) << ", \"device\": " << Json(device.name) << ",\n\"results\": [\n";
  for (std::size_t i = 0; i < rows.size(); ++i) file << rows[i].dump() << (i + 1 < rows.size() ? ",\n" : "\n");
  file << "]}\n";
  for (const auto& [verdict, count] : counts) std::cout << verdict << ": " << count << "\n";
  const std::vector<std::string> missed = missed_known_forms(rows);
  for (const std::string& name : missed) std::cout << "not found again: " << name << "\n";
  return missed.empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Tries forms of cuDNN score modifiers on this device and writes the table of what is right"};
  std::string output = "cudnn_forms.json", machine;
  int workers = static_cast<int>(std::thread::hardware_concurrency());
  bool worker = false, timed = false;
  app.add_option("-o,--output", output, "the JSON file to write");
  app.add_option("--machine", machine, "what to note as the machine");
  app.add_option("--workers", workers, "child processes at once")->check(CLI::PositiveNumber);
  app.add_flag("--timed", timed, "also time each right form at batch 4, heads 16, sequence 4096, head dim 128");
  app.add_flag("--worker", worker, "answer jobs from standard input (used by the explorer itself)");
  CLI11_PARSE(app, argc, argv);
  try {
    return worker ? work(timed) : explore("/proc/self/exe", output, workers, timed, machine);
  } catch (const scoremod::Error& failure) {
    std::cerr << "scoremod_explore: " << to_string(failure.code()) << ": " << failure.what() << "\n";
    return 4;
  }
}
