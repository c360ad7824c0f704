#pragma once

#include <optional>
#include <string>

#include "benchmark.hpp"
#include "peak_memory.hpp"

namespace scoremod::bench {

/// The performance targets beside the results: a line each, with MISSED if one is not met.
std::string host_targets(const measure::BenchmarkResult& result, const std::optional<PeakMemory>& memory);
std::string device_targets(const measure::BenchmarkResult& result);

}  // namespace scoremod::bench
