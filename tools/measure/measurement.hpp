#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "scoremod/error.hpp"

#include "plan_times.hpp"
#include "reference.hpp"

namespace scoremod::measure {

struct MeasurementOptions {
  CompileOptions compile;
  int repetitions = 9;
};

/// The measurements of one case. Unknown values are absent.
struct Measurement {
  BenchCase bench_case;
  std::string error;  ///< why it could not be measured; when not empty, nothing below is known
  ErrorCode error_code = ErrorCode::kInvalidArgument;
  std::string backend;
  double ms = 0;         ///< of one call: the median
  double spread_ms = 0;  ///< between the quartiles
  double flops = 0;      ///< product_flops()
  std::optional<double> reference_ms;
  /// Time over the reference's time, below 1 is faster: the median over the repetitions, each with the times that were
  /// taken one after the other. A device's clocks change by more than the differences of interest.
  std::optional<double> ratio;
  /// The relative distance from float64, and its tolerance, of the output that takes up most of its tolerance, in a
  /// sample of its rows. The output is scoremod's or the reference's: see check_sample().
  std::optional<double> difference, tolerance;
  std::string differing;  ///< the output that is over the tolerance, and whose: "dq of scoremod"
  std::optional<double> host_us, reference_host_us;
  std::size_t workspace_bytes = 0;
  PlanTimes plan;

  double tflops() const { return flops / ms / 1e9; }
};

/// Measures cases beside their references: on the host all in turn, on a device one after the other, because all at
/// once may not fit. Each is made and run once to warm up. Then it is timed `repetitions` times in turn with the
/// reference, so that a change of the machine's speed affects both. On a device a time is that of several calls between
/// two events. An untimed call before keeps the device busy while they are enqueued. The host's cost of a call is
/// measured apart.
///
/// Errors of a case are put into its measurement (a reference's text begins with "reference: "), and the other cases
/// are measured. Cases that would begin when `is_over` returns true are skipped. `on_result` is called as results come.
std::vector<Measurement> measure_all(std::span<const BenchCase> cases, const MeasurementOptions& options,
                                     const PlanReport& plans, const MakeReference& make_reference,
                                     const std::function<bool()>& is_over,
                                     const std::function<void(const Measurement&)>& on_result);

}  // namespace scoremod::measure
