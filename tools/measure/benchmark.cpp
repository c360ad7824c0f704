#include "benchmark.hpp"

#include <algorithm>
#include <chrono>
#include <set>
#include <span>
#include <sstream>

#include <CLI/CLI.hpp>

#include "scoremod/cache.hpp"
#include "scoremod/error.hpp"

#include "integer_range.hpp"
#include "selection_options.hpp"
#include "store_folder.hpp"

namespace scoremod::measure {
namespace {

std::vector<BenchCase> chosen_cases(const BenchmarkArguments& arguments) {
  std::vector<BenchCase> cases;
  std::set<std::string> names;
  for (const std::string& file : arguments.files) {
    for (BenchCase& bench_case : load_cases(file, !arguments.forward_only)) {
      names.insert(bench_case.name);
      const bool wanted =
          arguments.only.empty() || std::ranges::find(arguments.only, bench_case.name) != arguments.only.end();
      if (wanted) cases.push_back(std::move(bench_case));
    }
  }
  for (const std::string& name : arguments.only) {
    if (names.contains(name)) continue;
    std::string known;
    for (const std::string& each : names) known += (known.empty() ? "" : ", ") + each;
    throw Error(ErrorCode::kInvalidArgument, "--only: expected names of cases (" + known + "), found '" + name + "'");
  }
  if (cases.empty())
    throw Error(ErrorCode::kInvalidArgument, "expected at least one case to measure, found none in the files");
  return cases;
}

/// Gives the process its plan store back.
class StoreInUse {
 public:
  StoreInUse() : before_(plan_store_directory()) {}
  ~StoreInUse() { set_plan_store_directory(before_); }
  StoreInUse(const StoreInUse&) = delete;
  StoreInUse& operator=(const StoreInUse&) = delete;

 private:
  std::string before_;
};

std::string plans_text(const PlanReport& plans) {
  std::ostringstream out;
  if (!plans.error.empty()) out << "plans: no times, " << plans.error << "\n";
  if (!plans.on_device || !plans.start_ms) return out.str();
  out << "plans: with a filled store " << *plans.filled_store_builds << " were built; the process's first compile took "
      << *plans.start_ms << " ms\n";
  return out.str();
}

}  // namespace

void add_options(CLI::App& command, BenchmarkArguments& arguments) {
  MeasurementOptions& measurement = arguments.measurement;
  command.add_option("--only", arguments.only, "Names of the cases to measure; all if left out");
  command.add_flag("--forward-only", arguments.forward_only, "Leave out the backward passes");
  input::add_selection(command, measurement.compile, " to run on");
  input::add_threads(command, measurement.compile.threads);
  command.add_option("--repetitions", measurement.repetitions, "Times whose median is reported")
      ->capture_default_str()
      ->check(input::integer_range(1, 100000));
  command
      .add_option("--seconds", arguments.seconds, "How long all may take: cases that would begin later are left out")
      ->check(CLI::PositiveNumber);
  command.add_option("--machine", arguments.origin.machine, "What the report says of the machine");
  command.add_option("--commit", arguments.origin.commit,
                     "What the report says was measured; git's answer if left out");
}

bool BenchmarkResult::fine() const {
  return std::ranges::all_of(results,
                             [](const Measurement& one) { return one.error.empty() && one.differing.empty(); });
}

const Measurement* BenchmarkResult::first_error() const {
  const auto found = std::ranges::find_if(results, [](const Measurement& one) { return !one.error.empty(); });
  return found == results.end() ? nullptr : &*found;
}

BenchmarkResult run_benchmark(const BenchmarkArguments& arguments, const MakeReference& make_reference,
                              const std::function<void(const std::string&)>& print) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  const auto is_over = [&] { return std::chrono::duration<double>(Clock::now() - start).count() > arguments.seconds; };
  const std::vector<BenchCase> cases = chosen_cases(arguments);
  BenchmarkResult result;
  const StoreInUse store;
  const StoreFolder folder;
  result.plans = plan_times(cases, arguments.measurement.compile, folder.path());
  const TableColumns columns{static_cast<bool>(make_reference), result.plans.on_device};
  print(table_head(columns));
  result.results = measure_all(cases, arguments.measurement, result.plans, make_reference, is_over,
                               [&](const Measurement& one) { print(table_line(one, columns)); });
  for (const BenchCase& left : std::span(cases).subspan(result.results.size())) {
    result.not_run.push_back(left.name + " " + to_string(left.direction));
    print(result.not_run.back() + ": not run, the time is over\n");
  }
  print(plans_text(result.plans));
  return result;
}

nlohmann::ordered_json report_json(const BenchmarkResult& result, const BenchmarkArguments& arguments) {
  nlohmann::ordered_json report = report_json(result.results, result.plans, arguments.measurement, arguments.origin);
  report["not_run"] = result.not_run;
  return report;
}

}  // namespace scoremod::measure
