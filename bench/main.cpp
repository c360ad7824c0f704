// Measures scoremod on the cases of a file, each beside OpenBLAS doing the same matrix products alone.

#include <algorithm>
#include <iostream>

#include <CLI/CLI.hpp>

#include "scoremod/error.hpp"

#include "measurement.hpp"
#include "peak_memory.hpp"
#include "report.hpp"

namespace scoremod::bench {
namespace {

struct Arguments {
  std::string cases = "bench/cases.json";
  std::string output = "bench/results/cpu.json";
  std::vector<std::string> only;
  bool forward_only = false;
  bool no_memory = false;
  std::int64_t peak_memory_child = 0;
  MeasurementOptions measurement;
};

void run(const Arguments& arguments) {
  if (arguments.peak_memory_child > 0)
    return print_peak_memory(arguments.peak_memory_child, arguments.measurement.threads);
  std::vector<BenchCase> cases = load_cases(arguments.cases, !arguments.forward_only);
  if (!arguments.only.empty()) {
    std::erase_if(cases, [&](const BenchCase& one) {
      return std::ranges::find(arguments.only, one.name) == arguments.only.end();
    });
  }
  if (cases.empty())
    throw Error(ErrorCode::kInvalidArgument, "no case of " + arguments.cases + " has a name that was asked for");
  const auto memory = arguments.no_memory ? std::nullopt : measure_peak_memory(32768, arguments.measurement.threads);
  const std::vector<Measurement> results = measure(cases, arguments.measurement);
  print_table(results, memory);
  if (!arguments.output.empty()) write_json(arguments.output, results, memory, arguments.measurement);
}

}  // namespace
}  // namespace scoremod::bench

int main(int argc, char** argv) {
  scoremod::bench::Arguments arguments;
  CLI::App app("Measures scoremod beside OpenBLAS doing the same matrix products alone");
  app.add_option("--cases", arguments.cases, "The cases: a JSON array of {name, problem}")->capture_default_str();
  app.add_option("--output", arguments.output, "Where the results go as JSON; empty for nowhere")
      ->capture_default_str();
  app.add_option("--only", arguments.only, "Names of the cases to run");
  app.add_flag("--forward-only", arguments.forward_only, "Leave out the backward passes");
  app.add_flag("--no-memory", arguments.no_memory, "Leave out the measurement of memory");
  app.add_option("--backend", arguments.measurement.backend, "As in CompileOptions; empty for the first that fits");
  app.add_option("--threads", arguments.measurement.threads, "Threads of scoremod and of OpenBLAS")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--repetitions", arguments.measurement.repetitions)
      ->capture_default_str()
      ->check(CLI::Range(1, 100000));
  app.add_option(scoremod::bench::kPeakMemoryOption, arguments.peak_memory_child)->group("");
  CLI11_PARSE(app, argc, argv);
  try {
    scoremod::bench::run(arguments);
  } catch (const scoremod::Error& error) {
    std::cerr << "scoremod_bench: " << to_string(error.code()) << " error: " << error.what() << '\n';
    return error.code() == scoremod::ErrorCode::kInvalidArgument ? 2 : 1;
  }
  return 0;
}
