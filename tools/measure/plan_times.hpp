#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "scoremod/attention.hpp"

#include "bench_case.hpp"

namespace scoremod::measure {

/// The times of making a case's plan, in milliseconds. Absent if plans are not kept (on the host) or not known.
struct PlanTimes {
  std::optional<double> build_ms;  ///< building it, where nothing is stored
  std::optional<double>
      trial_ms;                   ///< running it on a small problem before it is used; 0 where it was known to be right
  std::optional<double> load_ms;  ///< loading it from the store in another process
  std::optional<double> compile_ms;  ///< the whole of Attention::compile() there, including loads
  std::optional<double> static_us;   ///< support() at SupportLevel::kStatic, microseconds (median)
};

/// The results of two processes, one after the other, with a plan store of their own.
struct PlanReport {
  bool on_device = false;
  std::vector<PlanTimes> times;            ///< one for each case
  std::optional<double> start_ms;          ///< the second's first compile(), which loads the device's libraries
  std::optional<int> filled_store_builds;  ///< builds of the second process although the store was filled: 0 is
                                           ///< expected
  std::string error;                       ///< why a process gave no times
};

/// Compiles the cases in a process with an empty store, then in another one with the store that this left. Call it
/// before anything else looks for a device: a process that has is not to be forked. Afterwards this process uses the
/// store in `directory`, too, an empty folder.
PlanReport plan_times(std::span<const BenchCase> cases, const CompileOptions& options, const std::string& directory);

}  // namespace scoremod::measure
