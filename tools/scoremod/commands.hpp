#pragma once

#include <functional>

#include <CLI/App.hpp>

namespace scoremod::cli {

/// A subcommand's work once the command line has been read; returns an exit code.
using Action = std::function<int()>;

// Each adds one subcommand to the app, and sets *action when it is chosen.
void add_explain(CLI::App& app, Action* action);
void add_run(CLI::App& app, Action* action);
void add_check(CLI::App& app, Action* action);
void add_bench(CLI::App& app, Action* action);
void add_zoo(CLI::App& app, Action* action);
void add_compile(CLI::App& app, Action* action);
void add_device(CLI::App& app, Action* action);
void add_cache(CLI::App& app, Action* action);

}  // namespace scoremod::cli
