#pragma once

#include <string>

#include "benchmark.hpp"

namespace scoremod::bench {

/// The errors of predicted times in a few lines: the median and the worst of all cases that `path` has a prediction
/// for. `path` is bench/results/prediction.json, which a test compares with the code. They are predictions for an
/// NVIDIA H200. Throws Error(kInvalidArgument) for a file that holds something else.
std::string compare_predictions(const measure::BenchmarkResult& result, const std::string& path);

}  // namespace scoremod::bench
