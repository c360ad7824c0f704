#include <memory>

#include "benchmark.hpp"
#include "commands.hpp"
#include "exit_code.hpp"
#include "standard_output.hpp"

namespace scoremod::cli {
namespace {

int run(measure::BenchmarkArguments& arguments) {
  arguments.origin.versions["scoremod"] = SCOREMOD_VERSION;
  const measure::BenchmarkResult result = measure::run_benchmark(arguments, {}, write_output);
  if (!arguments.json.empty()) measure::write_report(arguments.json, report_json(result, arguments));
  const measure::Measurement* failed = result.first_error();
  return failed == nullptr ? kFine : exit_code_of(failed->error_code);
}

}  // namespace

void add_bench(CLI::App& app, Action* action) {
  const auto arguments = std::make_shared<measure::BenchmarkArguments>();
  CLI::App* command = app.add_subcommand("bench", "Measure how fast problems run");
  command->add_option("CASES", arguments->files, "JSON files: lists of cases, or problems")->required();
  command->add_option("--json", arguments->json, "File to write the results to");
  measure::add_options(*command, *arguments);
  command->callback([=] { *action = [arguments] { return run(*arguments); }; });
}

}  // namespace scoremod::cli
