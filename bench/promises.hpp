#pragma once

#include <optional>
#include <string>

#include "benchmark.hpp"
#include "peak_memory.hpp"

namespace scoremod::bench {

/// What the project promises of speed, beside what was found: a line each, with MISSED where it is not kept.
std::string host_promises(const measure::BenchmarkResult& result, const std::optional<PeakMemory>& memory);
std::string device_promises(const measure::BenchmarkResult& result);

}  // namespace scoremod::bench
