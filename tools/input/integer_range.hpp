#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include <CLI/App.hpp>

namespace scoremod::input {

/// Checks that the text of an option is an integer from `low` to `high`. (CLI11's own messages name the range of a
/// double.)
CLI::Validator integer_range(std::int64_t low, std::uint64_t high = std::numeric_limits<int>::max());

/// The option --threads.
CLI::Option* add_threads(CLI::App& app, int& threads, const std::string& more_help = "");

}  // namespace scoremod::input
