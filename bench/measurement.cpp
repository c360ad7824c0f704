#include "measurement.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include "attention_run.hpp"
#include "blas_products.hpp"

namespace scoremod::bench {
namespace {

template <class Body>
double milliseconds(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

double quantile(std::vector<double> values, double part) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(part * static_cast<double>(values.size() - 1) + 0.5)];
}

/// OpenBLAS's threads keep a core busy for a while after a product, waiting for the next one; what runs then has one
/// core less. They go to sleep after 2^26 cycles (its THREAD_TIMEOUT), some 30 ms.
void let_openblas_sleep() { std::this_thread::sleep_for(std::chrono::milliseconds(100)); }

struct Running {
  AttentionRun attention;
  BlasProducts reference;
  std::vector<double> ms, reference_ms;
};

}  // namespace

std::vector<Measurement> measure(std::span<const BenchCase> cases, const MeasurementOptions& options) {
  BlasProducts::set_threads(options.threads);
  std::vector<std::unique_ptr<Running>> running;
  for (const BenchCase& bench_case : cases) {
    running.push_back(std::make_unique<Running>(
        Running{AttentionRun(bench_case, options.backend, options.threads), BlasProducts(bench_case), {}, {}}));
    running.back()->attention.run();
    running.back()->reference.run();
  }
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    for (const auto& one : running) {
      // Each is called once untimed first: after a pause clocks are low and caches cold.
      let_openblas_sleep();
      one->attention.run();
      one->ms.push_back(milliseconds([&] { one->attention.run(); }));
      one->reference.run();
      one->reference_ms.push_back(milliseconds([&] { one->reference.run(); }));
    }
  }
  std::vector<Measurement> results;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    Measurement result;
    result.bench_case = cases[i];
    result.ms = quantile(running[i]->ms, 0.5);
    result.spread_ms = quantile(running[i]->ms, 0.75) - quantile(running[i]->ms, 0.25);
    result.reference_ms = quantile(running[i]->reference_ms, 0.5);
    result.workspace_bytes = running[i]->attention.workspace_bytes();
    results.push_back(result);
  }
  return results;
}

}  // namespace scoremod::bench
