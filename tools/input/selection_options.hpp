#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "scoremod/attention.hpp"

namespace scoremod::input {

/// Adds the options that select backends: --backend, --backends and --memory, into `options`. `purpose` follows
/// "Backend" in the help: " to run on".
void add_selection(CLI::App& command, CompileOptions& options, const std::string& purpose);

}  // namespace scoremod::input
