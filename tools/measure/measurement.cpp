#include "measurement.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <memory>

#include "scoremod/call_timer.hpp"
#include "scoremod/error.hpp"
#include "scoremod/sample_check.hpp"

namespace scoremod::measure {
namespace {

using Clock = std::chrono::steady_clock;

/// Device time between two events: long beside the cost of events and of a first launch.
constexpr double kBlockMs = 4;
constexpr int kMaxCallsInBlock = 64;
/// Calls whose cost to the host is seen, and how many are enqueued in a row: a device's queue holds the launches of
/// more.
constexpr int kHostCalls = 96;
constexpr int kHostCallsInRow = 2;

double quantile(std::vector<double> values, double part) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(part * static_cast<double>(values.size() - 1) + 0.5)];
}

/// One implementation of a case and its times.
struct Timed {
  std::function<void(std::size_t)> call;  ///< with the number of a set
  int calls_in_block = 1;
  std::vector<double> ms, host_us;
};

class Running {
 public:
  Running(const BenchCase& bench_case, const CompileOptions& options, InputMaker& inputs,
          const MakeReference& make_reference)
      : run_(bench_case, options, inputs.make(bench_case)), timer_(run_.attention(), run_.stream()) {
    own_.call = [this](std::size_t set) { run_.run(set); };
    own_.call(0);
    run_.wait();
    make_reference_of(bench_case, make_reference);
    if (!run_.on_device()) return;
    compare();
    choose_block(own_);
    if (reference_) choose_block(other_);
  }

  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  void time_once() {
    if (reference_) reference_->rest();
    for_both([&](Timed& timed) { timed.ms.push_back(block_ms(timed)); });
  }

  void time_host() {
    if (!run_.on_device()) return;
    for (int i = 0; i < kHostCalls; ++i) {
      if (i % kHostCallsInRow == 0) run_.wait();
      for_both([&](Timed& timed) { timed.host_us.push_back(host_us(timed)); });
    }
    run_.wait();
  }

  Measurement result() const {
    Measurement result;
    result.bench_case = run_.bench_case();
    result.backend = run_.attention().backend();
    result.ms = quantile(own_.ms, 0.5);
    result.spread_ms = quantile(own_.ms, 0.75) - quantile(own_.ms, 0.25);
    result.flops = product_flops(result.bench_case);
    result.workspace_bytes = run_.workspace_bytes();
    if (!own_.host_us.empty()) result.host_us = quantile(own_.host_us, 0.5);
    if (!reference_) return result;
    result.reference_ms = quantile(other_.ms, 0.5);
    result.ratio = median_ratio();
    if (!other_.host_us.empty()) result.reference_host_us = quantile(other_.host_us, 0.5);
    if (!samples_.empty()) note_difference(result);
    return result;
  }

 private:
  void make_reference_of(const BenchCase& bench_case, const MakeReference& make_reference) {
    if (!make_reference) return;
    try {
      reference_ = make_reference(bench_case, run_);
      if (!reference_) return;
      other_.call = [this](std::size_t set) { reference_->run(set); };
      other_.call(run_.sets() - 1);
      run_.wait();
    } catch (const Error& error) {
      throw Error(error.code(), std::string("reference: ") + error.what());
    }
  }

  /// Both have run once: scoremod in the first set, the reference in the last.
  void compare() {
    if (!reference_ || !reference_->writes_outputs()) return;
    add_samples(run_.fetch(0), "scoremod");
    add_samples(run_.fetch(run_.sets() - 1), "the reference");
  }

  /// Adds every output but the LSE, which not every implementation defines for rows without keys.
  void add_samples(std::span<const RunOutput> outputs, const char* whose) {
    std::vector<RunOutput> compared;
    std::ranges::copy_if(outputs, std::back_inserter(compared), [](const RunOutput& one) { return one.name != "lse"; });
    for (OutputSample& sample : check_sample(run_.bench_case().problem, run_.inputs(), compared)) {
      sample.name += std::string(" of ") + whose;
      samples_.push_back(std::move(sample));
    }
  }

  void choose_block(Timed& timed) {
    const double once = block_ms(timed);
    timed.calls_in_block = std::clamp(static_cast<int>(kBlockMs / once) + 1, 1, kMaxCallsInBlock);
  }

  std::size_t next_set() { return set_ = (set_ + 1) % run_.sets(); }

  double block_ms(Timed& timed) {
    // After a pause clocks are low and caches cold; and a device then has work while the rest is enqueued.
    timed.call(next_set());
    timer_.start();
    for (int i = 0; i < timed.calls_in_block; ++i) timed.call(next_set());
    return timer_.stop() / timed.calls_in_block;
  }

  /// On a device the order alternates, so that side effects of one run affect both alike. On the host the reference's
  /// threads have to rest() before scoremod's turn.
  template <class Body>
  void for_both(const Body& body) {
    own_first_ = !run_.on_device() || !own_first_;
    if (!own_first_ && reference_) body(other_);
    body(own_);
    if (own_first_ && reference_) body(other_);
  }

  double host_us(Timed& timed) {
    const std::size_t set = next_set();
    const auto start = Clock::now();
    timed.call(set);
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  }

  double median_ratio() const {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < own_.ms.size(); ++i) ratios.push_back(own_.ms[i] / other_.ms[i]);
    return quantile(ratios, 0.5);
  }

  void note_difference(Measurement& result) const {
    const auto badness = [](const OutputSample& one) {
      return one.right() ? one.error / one.tolerance : std::numeric_limits<double>::infinity();
    };
    const auto worst = std::ranges::max_element(samples_, {}, badness);
    result.difference = worst->error;
    result.tolerance = worst->tolerance;
    if (!worst->right()) result.differing = worst->name;
  }

  AttentionRun run_;
  CallTimer timer_;
  std::unique_ptr<Reference> reference_;
  Timed own_, other_;
  std::vector<OutputSample> samples_;
  std::size_t set_ = 0;
  bool own_first_ = false;
};

Measurement failed(const BenchCase& bench_case, const Error& error) {
  Measurement result;
  result.bench_case = bench_case;
  result.error = std::string(to_string(error.code())) + ": " + error.what();
  result.error_code = error.code();
  return result;
}

/// Measures cases in turn.
std::vector<Measurement> measure(std::span<const BenchCase> cases, const MeasurementOptions& options,
                                 InputMaker& inputs, const MakeReference& make_reference) {
  std::vector<Measurement> results(cases.size());
  std::vector<std::unique_ptr<Running>> running(cases.size());
  // Runs body for each case that has not failed yet.
  const auto for_each = [&](const auto& body) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      if (!results[i].error.empty()) continue;
      try {
        body(i);
      } catch (const Error& error) {
        results[i] = failed(cases[i], error);
        running[i] = nullptr;
      }
    }
  };
  for_each([&](std::size_t i) {
    running[i] = std::make_unique<Running>(cases[i], options.compile, inputs, make_reference);
  });
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    for_each([&](std::size_t i) { running[i]->time_once(); });
  }
  for_each([&](std::size_t i) {
    running[i]->time_host();
    results[i] = running[i]->result();
  });
  return results;
}

}  // namespace

std::vector<Measurement> measure_all(std::span<const BenchCase> cases, const MeasurementOptions& options,
                                     const PlanReport& plans, const MakeReference& make_reference,
                                     const std::function<bool()>& is_over,
                                     const std::function<void(const Measurement&)>& on_result) {
  InputMaker inputs;
  std::vector<Measurement> results;
  const std::size_t at_once = plans.on_device ? 1 : cases.size();
  for (std::size_t begin = 0; begin < cases.size() && !is_over(); begin += at_once) {
    for (Measurement& result : measure(cases.subspan(begin, at_once), options, inputs, make_reference)) {
      result.plan = plans.times[results.size()];
      on_result(result);
      results.push_back(std::move(result));
    }
  }
  return results;
}

}  // namespace scoremod::measure
