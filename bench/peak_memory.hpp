#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

namespace scoremod::bench {

/// The memory that one forward call at a long sequence adds to a process that already holds its inputs and outputs,
/// every page touched.
struct PeakMemory {
  std::int64_t batch = 1, heads = 1, seq = 32768, dim = 64;
  std::int64_t input_output_bytes = 0;
  std::int64_t added_bytes = 0;      ///< growth of the peak resident set: workspace, threads, everything
  std::int64_t workspace_bytes = 0;  ///< the part that the plan reports
};

nlohmann::ordered_json to_json(const PeakMemory& memory);

/// The option by which this executable runs as the child of measure_peak_memory.
inline constexpr const char* kPeakMemoryOption = "--peak-memory-child";

/// Runs this executable again as a fresh process, because a peak never falls. Empty when that is not possible.
std::optional<PeakMemory> measure_peak_memory(std::int64_t seq, int threads);

/// The child: measures and prints one line of JSON.
void print_peak_memory(std::int64_t seq, int threads);

}  // namespace scoremod::bench
