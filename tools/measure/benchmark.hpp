#pragma once

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <CLI/App.hpp>

#include "measurement.hpp"
#include "report.hpp"

namespace scoremod::measure {

/// A benchmark's command-line arguments.
struct BenchmarkArguments {
  std::vector<std::string> files;  ///< as load_cases() takes them
  std::vector<std::string> only;   ///< names of cases; empty for all
  bool forward_only = false;
  /// How long all may take: cases that would begin later are left out. On the host all begin at once.
  double seconds = std::numeric_limits<double>::infinity();
  std::string out;  ///< file for the report; empty for none
  MeasurementOptions measurement;
  ReportOrigin origin;
};

/// Adds the options that fill everything but `files` and `out`.
void add_options(CLI::App& command, BenchmarkArguments& arguments);

struct BenchmarkResult {
  std::vector<Measurement> results;
  std::vector<std::string> not_run;  ///< cases and directions for which there was no time: "causal backward"
  PlanReport plans;

  /// Whether every case that was run was measured, and agrees with its reference.
  bool fine() const;
  /// The error of the first case that was not measured; none when fine() is for another reason false.
  const Measurement* first_error() const;
};

/// Loads the cases, measures them, and gives the table to `print`, line by line. Throws Error(kInvalidArgument) for a
/// mistake in the arguments or files.
BenchmarkResult run_benchmark(const BenchmarkArguments& arguments, const MakeReference& make_reference,
                              const std::function<void(const std::string&)>& print);

nlohmann::ordered_json report_json(const BenchmarkResult& result, const BenchmarkArguments& arguments);

}  // namespace scoremod::measure
