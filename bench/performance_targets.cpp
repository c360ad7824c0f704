#include "performance_targets.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

namespace scoremod::bench {
namespace {

using measure::Direction;
using measure::Measurement;

constexpr double kMaxTimeOverReference = 1.03;
constexpr double kMaxHostTimeOverReference = 1.2;
constexpr double kMaxLoadMs = 10;
constexpr double kMaxStaticUs = 100;

const Measurement* forward_of(const measure::BenchmarkResult& result, const std::string& name) {
  for (const Measurement& one : result.results) {
    const bool found = one.bench_case.name == name && one.bench_case.direction == Direction::kForward;
    if (found && one.error.empty()) return &one;
  }
  return nullptr;
}

std::string target_line(const std::string& what, double found, const char* relation, double target, bool is_met) {
  std::array<char, 256> line{};
  std::snprintf(line.data(), line.size(), "%-58s %8.3f  (target: %s %.2f)%s\n", what.c_str(), found, relation, target,
                is_met ? "" : "  MISSED");
  return line.data();
}

std::string at_most(const std::string& what, double found, double target) {
  return target_line(what, found, "at most", target, found <= target);
}

std::string name_of(const Measurement& one) { return one.bench_case.name + " " + to_string(one.bench_case.direction); }

/// The largest value of all cases, and whose it is.
struct Largest {
  double value = 0;
  std::string name;

  void take(double other, const Measurement& of) {
    if (name.empty() || other > value) *this = {other, name_of(of)};
  }
};

}  // namespace

std::string host_targets(const measure::BenchmarkResult& result, const std::optional<PeakMemory>& memory) {
  std::string text = "\n";
  if (const Measurement* full = forward_of(result, "full"); full != nullptr && full->reference_ms) {
    const double rate = *full->reference_ms / full->ms;
    text += target_line("full, part of OpenBLAS's rate", rate, "at least", 0.5, rate >= 0.5);
    if (const Measurement* causal = forward_of(result, "causal")) {
      text += at_most("causal, time over full", causal->ms / full->ms, 0.6);
    }
    if (const Measurement* cap = forward_of(result, "soft_cap")) {
      text += at_most("soft_cap, time over full", cap->ms / full->ms, 1.6);
    }
  }
  if (memory) {
    const double added = static_cast<double>(memory->added_bytes) / (1 << 20);
    text += target_line("memory beyond inputs and outputs, B1 H1 S32768 D64, MiB", added, "below", 64, added < 64);
  }
  return text;
}

std::string device_targets(const measure::BenchmarkResult& result) {
  Largest ratio, host, load;
  std::vector<double> statics;
  std::string missed;
  for (const Measurement& one : result.results) {
    if (!one.error.empty()) continue;
    if (one.ratio) ratio.take(*one.ratio, one);
    if (one.ratio && *one.ratio > kMaxTimeOverReference) {
      missed += at_most("  " + name_of(one) + ", time", *one.ratio, kMaxTimeOverReference);
    }
    if (one.host_us && one.reference_host_us) host.take(*one.host_us / *one.reference_host_us, one);
    if (one.plan.load_ms) load.take(*one.plan.load_ms, one);
    if (one.plan.static_us) statics.push_back(*one.plan.static_us);
  }
  std::string text = "\n";
  if (!ratio.name.empty())
    text += at_most("time over the graph by hand: " + ratio.name, ratio.value, kMaxTimeOverReference);
  text += missed;
  if (!host.name.empty()) {
    text += at_most("host time over the graph by hand: " + host.name, host.value, kMaxHostTimeOverReference);
  }
  if (!load.name.empty()) text += at_most("loading a stored plan, ms: " + load.name, load.value, kMaxLoadMs);
  if (!statics.empty()) {
    const auto median = statics.begin() + static_cast<std::ptrdiff_t>(statics.size() / 2);
    std::ranges::nth_element(statics, median);
    text += at_most("static answer, us (median of the cases)", *median, kMaxStaticUs);
  }
  if (result.plans.filled_store_builds)
    text += at_most("built with a filled store", *result.plans.filled_store_builds, 0);
  return text;
}

}  // namespace scoremod::bench
