#include "suite_command.hpp"

#include <cstdio>

#include <CLI/CLI.hpp>

#include "exit_code.hpp"
#include "fail.hpp"
#include "integer_range.hpp"
#include "output_file.hpp"
#include "progress_bar.hpp"
#include "standard_output.hpp"

namespace scoremod::cli {
namespace {

DType dtype_of(const std::string& name) {
  const std::optional<DType> dtype = parse_dtype(name);
  if (!dtype)
    input::fail(ErrorCode::kInvalidArgument, "--dtype: expected f32, f16, bf16, e4m3 or e5m2, found '", name, "'");
  return *dtype;
}

int exit_code_of(const SuiteReport& report) {
  if (report.count(SuiteVerdict::kWrong) + report.count(SuiteVerdict::kError) > 0) return kCheckFailed;
  // Nothing was shown to be right, as without a GPU.
  return report.count(SuiteVerdict::kRight) > 0 ? kFine : kUnsupported;
}

}  // namespace

CLI::Option* add_suite_options(CLI::App& command, SuiteArguments& arguments) {
  CLI::Option* suite =
      command.add_flag("--suite", arguments.wanted, "Check the whole zoo and random problems instead of one PROBLEM");
  const auto add = [&](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->needs(suite)->group("With --suite");
  };
  add("--random", arguments.options.random_problems, "How many random problems")
      ->check(input::integer_range(0))
      ->capture_default_str();
  add("--filter", arguments.options.filter, "Only problems whose name contains this: zoo/causal/, random/7");
  add("--parts", arguments.options.parts, "Processes that share the suite")->check(input::integer_range(1));
  add("--part", arguments.options.part, "Which of the --parts this process runs, from 0")
      ->check(input::integer_range(0));
  add("--dtype", arguments.dtypes, "f32, f16, bf16, e4m3 or e5m2, several if given again; f16 and bf16 if left out");
  input::add_out(command, arguments.out, "file", "File to write the report to, as JSON")
      ->needs(suite)
      ->group("With --suite");
  command.add_flag("--verbose", arguments.verbose, "Say on the standard error which problem begins and which is done")
      ->needs(suite)
      ->group("With --suite");
  add("--machine", arguments.origin.machine, "What the report says of the machine");
  add("--commit", arguments.origin.commit, "What the report says of the sources");
  return suite;
}

int run_suite(const SuiteArguments& arguments, bool json) {
  CheckSuiteOptions options = arguments.options;
  for (const std::string& name : arguments.dtypes) options.dtypes.push_back(dtype_of(name));
  if (!arguments.out.empty()) input::expect_writable(arguments.out);
  SuiteReport report;
  {
    ProgressBar progress;
    options.on_progress = [&](const SuiteProgress& now) {
      if (arguments.verbose) std::fprintf(stderr, "%s %s\n", now.begins ? "begin" : "done", now.problem.c_str());
      progress.update(std::to_string(now.done) + " of " + std::to_string(now.total) + " problems",
                      static_cast<double>(now.done) / static_cast<double>(now.total));
    };
    report = check_suite(options);
  }
  const std::string text = suite_json(report, arguments.origin);
  if (!arguments.out.empty()) input::write_file(arguments.out, text);
  write_output(json ? text : suite_text(report));
  return exit_code_of(report);
}

}  // namespace scoremod::cli
