#include <memory>

#include "benchmark.hpp"
#include "commands.hpp"
#include "exit_code.hpp"
#include "output_file.hpp"
#include "standard_output.hpp"

namespace scoremod::cli {
namespace {

struct Arguments {
  measure::BenchmarkArguments benchmark;
  bool json = false;
};

int run(Arguments& arguments) {
  measure::BenchmarkArguments& benchmark = arguments.benchmark;
  benchmark.origin.versions["scoremod"] = SCOREMOD_VERSION;
  if (!benchmark.out.empty()) input::expect_writable(benchmark.out);
  const bool table = !arguments.json;
  const measure::BenchmarkResult result = measure::run_benchmark(benchmark, {}, [&](const std::string& line) {
    if (table) write_output(line);
  });
  const auto report = report_json(result, benchmark);
  if (!benchmark.out.empty()) input::write_file(benchmark.out, measure::report_text(report));
  if (arguments.json) write_output(measure::report_text(report));
  const measure::Measurement* failed = result.first_error();
  return failed == nullptr ? kFine : exit_code_of(failed->error_code);
}

}  // namespace

void add_bench(CLI::App& app, Action* action) {
  const auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("bench", "Measure how fast problems run");
  command->add_option("CASES", arguments->benchmark.files, "JSON files: lists of cases, or problems")->required();
  input::add_out(*command, arguments->benchmark.out, "file", "File to write the results to, as JSON");
  command->add_flag("--json", arguments->json, "Print JSON instead of the table");
  measure::add_options(*command, arguments->benchmark);
  command->callback([=] { *action = [arguments] { return run(*arguments); }; });
}

}  // namespace scoremod::cli
