#pragma once

#include <optional>
#include <span>
#include <string>

#include "measurement.hpp"
#include "peak_memory.hpp"

namespace scoremod::bench {

/// Prints a table and what the project promises beside what was found.
void print_table(std::span<const Measurement> results, const std::optional<PeakMemory>& memory);

/// Writes {machine, versions, commit, options, results, memory}. Throws Error(kEnvironment) when the file cannot be
/// written.
void write_json(const std::string& path, std::span<const Measurement> results, const std::optional<PeakMemory>& memory,
                const MeasurementOptions& options);

}  // namespace scoremod::bench
