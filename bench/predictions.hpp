#pragma once

#include <string>

#include "benchmark.hpp"

namespace scoremod::bench {

/// How far predicted times are from what was found, in a few lines: the median and the worst of all cases that `path`
/// (bench/results/prediction.json, which a test holds to the code) has a prediction for. They are predictions for an
/// NVIDIA H200. Throws Error(kInvalidArgument) for a file that holds something else.
std::string compare_predictions(const measure::BenchmarkResult& result, const std::string& path);

}  // namespace scoremod::bench
