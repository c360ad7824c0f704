#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "bench_case.hpp"

namespace scoremod::bench {

struct MeasurementOptions {
  std::string backend;
  int threads = 2;
  int repetitions = 9;
};

/// Medians over the repetitions, in milliseconds.
struct Measurement {
  BenchCase bench_case;
  double ms = 0;
  double spread_ms = 0;  ///< between the quartiles
  double reference_ms = 0;
  std::size_t workspace_bytes = 0;

  /// Of the products of every query with every key, masked or not.
  double gflops() const { return product_flops(bench_case) / ms / 1e6; }
  /// OpenBLAS's time for the products alone over the whole time: 1 is the speed of the products alone.
  double ratio() const { return reference_ms / ms; }
};

/// Runs every case once to warm up, then all cases and their references in turn, `repetitions` times over, so that a
/// change of the machine's speed meets all of them alike.
std::vector<Measurement> measure(std::span<const BenchCase> cases, const MeasurementOptions& options);

}  // namespace scoremod::bench
