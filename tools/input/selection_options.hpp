#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "scoremod/attention.hpp"

namespace scoremod::input {

/// Adds what says who may run a problem: --backend, --backends and --memory, into `options`. `purpose` follows
/// "Backend" in the help: " to run on".
void add_selection(CLI::App& command, CompileOptions& options, const std::string& purpose);

}  // namespace scoremod::input
