#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iomanip>
#include <limits>
#include <memory>
#include <sstream>
#include <string>

#include <nlohmann/json.hpp>

#include "scoremod/check.hpp"

#include "commands.hpp"
#include "exit_code.hpp"
#include "fail.hpp"
#include "integer_range.hpp"
#include "load_inputs.hpp"
#include "problem_source.hpp"
#include "progress_bar.hpp"
#include "selection_options.hpp"
#include "standard_output.hpp"
#include "suite_command.hpp"

namespace scoremod::cli {
namespace {

struct Arguments {
  std::string problem;
  CompileOptions compile;
  bool forward_only = false;
  std::optional<std::uint64_t> seed;
  bool json = false;
  SuiteArguments suite;
};

nlohmann::ordered_json bound_json(const ErrorBound& bound) {
  return {{"error", bound.error},
          {"tolerance", bound.tolerance()},
          {"plain_error", bound.plain_error},
          {"band", bound.band},
          {"scale", bound.scale}};
}

std::string as_json(const CheckReport& report) {
  nlohmann::ordered_json json;
  json["backend"] = report.backend;
  json["passed"] = report.passed();
  json["seed"] = report.seed;
  json["outputs"] = nlohmann::ordered_json::array();
  for (const OutputCheck& output : report.outputs) {
    json["outputs"].push_back({{"name", output.name},
                               {"passed", output.passed()},
                               {"l2", bound_json(output.l2)},
                               {"max", bound_json(output.max)},
                               {"wrong_kind", output.wrong_kind},
                               {"problems", output.problems}});
  }
  json["memory_problems"] = report.memory_problems;
  json["forward_seconds"] = report.forward_seconds;
  json["backward_seconds"] = report.backward_seconds;
  return json.dump(2) + "\n";
}

constexpr int kColumn = 21;

/// The error relative to the oracle's size, if that has a meaning, and its part of the tolerance.
void print_bound(std::ostream& out, const ErrorBound& bound) {
  std::ostringstream relative;
  relative << std::setprecision(3);
  if (bound.is_above_rounding()) {
    relative << bound.error / bound.scale;
  } else {
    relative << "-";
  }
  out << std::setw(kColumn) << relative.str() << std::setw(kColumn) << 100 * bound.part_of_tolerance();
}

std::string as_text(const CheckReport& report) {
  std::size_t name_width = 18;
  for (const OutputCheck& output : report.outputs) name_width = std::max(name_width, output.name.size());
  const int width = static_cast<int>(name_width) + 2;
  std::ostringstream out;
  out << std::left << std::setprecision(3) << std::setw(width) << ("on " + report.backend);
  for (const char* heading : {"relative error (L2)", "% allowed", "relative error (max)", "% allowed"}) {
    out << std::setw(kColumn) << heading;
  }
  out << "\n";
  for (const OutputCheck& output : report.outputs) {
    out << std::setw(width) << output.name;
    print_bound(out, output.l2);
    print_bound(out, output.max);
    out << (output.passed() ? "ok" : "WRONG") << "\n";
    for (const std::string& problem : output.problems) out << "    " << problem << "\n";
  }
  for (const std::string& problem : report.memory_problems) out << "memory: " << problem << "\n";
  out << (report.passed() ? "passed" : "FAILED") << ", seed " << report.seed << "\n";
  return out.str();
}

int run(const Arguments& arguments) {
  if (arguments.suite.wanted) {
    SuiteArguments suite = arguments.suite;
    suite.options.compile = arguments.compile;
    suite.options.threads = arguments.compile.threads;
    suite.options.seed = arguments.seed;
    return run_suite(suite, arguments.json);
  }
  if (arguments.problem.empty()) {
    input::fail(ErrorCode::kInvalidArgument, "check: expected a PROBLEM, or --suite; see scoremod check --help");
  }
  ProblemSource source = read_problem(arguments.problem);
  AttentionProblem& problem = source.file.problem;
  problem.backward = !arguments.forward_only;
  problem.stats = true;
  validate(problem);
  CheckOptions options;
  options.compile = arguments.compile;
  options.seed = arguments.seed.value_or(source.file.seed);
  options.inputs = load_inputs(source, arguments.seed);
  CheckReport report;
  {
    ProgressBar progress;
    options.on_progress = [&](const std::string& stage, double fraction) { progress.update(stage, fraction); };
    report = check(problem, options);
  }
  write_output(arguments.json ? as_json(report) : as_text(report));
  return report.passed() ? kFine : kCheckFailed;
}

}  // namespace

void add_check(CLI::App& app, Action* action) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      app.add_subcommand("check", "Compare a backend's outputs and gradients with the float64 oracle's");
  CLI::Option* problem = command->add_option("PROBLEM", arguments->problem, "JSON file, or - for the standard input");
  input::add_selection(*command, arguments->compile, " to check");
  input::add_threads(*command, arguments->compile.threads, ". With --suite, problems at a time");
  CLI::Option* forward_only =
      command->add_flag("--forward-only", arguments->forward_only, "Leave the backward pass out");
  command
      ->add_option("--seed", arguments->seed,
                   "Seed of the random inputs, instead of the file's; with --suite a new one if left out")
      ->check(input::integer_range(0, std::numeric_limits<std::uint64_t>::max()));
  command->add_flag("--json", arguments->json, "Print JSON");
  add_suite_options(*command, arguments->suite)->excludes(problem, forward_only);
  command->callback([=] { *action = [arguments] { return run(*arguments); }; });
}

}  // namespace scoremod::cli
