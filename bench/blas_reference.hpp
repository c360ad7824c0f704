#pragma once

#include <chrono>
#include <thread>

#include "blas_products.hpp"
#include "reference.hpp"

namespace scoremod::bench {

/// BlasProducts beside a run on the host.
class BlasReference final : public measure::Reference {
 public:
  BlasReference(const BenchCase& bench_case, int threads) : products_(bench_case) {
    BlasProducts::set_threads(threads);
  }

  void run(std::size_t) override { products_.run(); }
  bool writes_outputs() const override { return false; }

  /// OpenBLAS's threads keep a core busy for a while after a product, waiting for the next one, so later work has one
  /// core less. They go to sleep after 2^26 cycles (its THREAD_TIMEOUT), some 30 ms.
  void rest() override { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }

 private:
  BlasProducts products_;
};

}  // namespace scoremod::bench
