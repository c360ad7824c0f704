#pragma once

#include <string>
#include <vector>

#include "bench_case.hpp"

namespace scoremod::bench {

using measure::BenchCase;
using measure::Direction;

/// A case's matrix products alone, by OpenBLAS: whole [seq_q, seq_kv] products in float32 for one head after the other.
/// Q K^T and P V forward; Q K^T, dO V^T, P^T dO, dS^T Q and dS K backward.
class BlasProducts {
 public:
  explicit BlasProducts(const BenchCase& bench_case);
  void run();

  /// OpenBLAS's own description: version, build and the kernels in use; "none" where it is not there.
  static std::string version();
  /// Throws Error(kEnvironment) where it is not there.
  static void set_threads(int threads);

 private:
  BenchCase case_;
  std::vector<float> q_, k_, v_, o_, scores_, adjoints_, dq_, dk_, dv_;
};

}  // namespace scoremod::bench
