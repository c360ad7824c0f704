#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace scoremod::acceptance {

/// The answers of one version of cuDNN: an object with "cudnn", "frontend", "problem" and "results", a list of one
/// object for each cell.
using Table = nlohmann::ordered_json;

/// Reads a table; throws Error(kInvalidArgument) when the file is not there or no table.
Table read_table(const std::string& path);

/// One result a line, so that a difference of two versions is readable.
void write_table(const Table& table, const std::string& path);

/// A line for every cell of `found` that differs from `committed`, and for every cell that only one of them has. With
/// `subset`, cells that only `committed` has are left out.
std::vector<std::string> differences(const Table& committed, const Table& found, bool subset);

/// The table as Markdown: a row for each modifier and direction, a column for each architecture, and below it the
/// reasons.
std::string to_markdown(const Table& table);

}  // namespace scoremod::acceptance
