#pragma once

#include <string>

#include <CLI/App.hpp>

#include "scoremod/check_suite.hpp"

#include "suite_report.hpp"

namespace scoremod::cli {

/// The arguments of `check --suite` beside the options that it shares with `check PROBLEM`.
struct SuiteArguments {
  bool wanted = false;
  CheckSuiteOptions options;
  std::vector<std::string> dtypes;
  std::string out;
  bool verbose = false;
  SuiteOrigin origin;
};

/// Adds --suite, and the options that need it.
CLI::Option* add_suite_options(CLI::App& command, SuiteArguments& arguments);

/// Runs the suite, prints its text or JSON, and writes the report where --out says; returns an exit code.
int run_suite(const SuiteArguments& arguments, bool json);

}  // namespace scoremod::cli
