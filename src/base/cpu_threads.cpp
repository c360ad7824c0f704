#include "base/cpu_threads.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <thread>

#include "base/environment.hpp"
#include "base/fail.hpp"

namespace scoremod {
namespace {

/// A number of threads; absent where the text is none.
std::optional<int> threads_of(std::string_view text) {
  int threads = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), threads);
  if (error != std::errc() || end != text.data() + text.size() || threads < 1) return {};
  return threads;
}

/// OpenMP's variable may list a number for each level of nested threads; the first one counts.
std::optional<int> openmp_threads() {
  const std::string_view text = environment_variable("OMP_NUM_THREADS");
  return threads_of(text.substr(0, text.find(',')));
}

}  // namespace

int cpu_cores() {
  // The system answers from a file, which takes longer than the rest of planning.
  static const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return cores;
}

int cpu_threads(int requested) {
  const int threads = requested > 0 ? requested : openmp_threads().value_or(cpu_cores());
  const std::string_view text = environment_variable("SCOREMOD_THREADS");
  if (text.empty()) return threads;
  const std::optional<int> most = threads_of(text);
  if (!most) fail_argument("SCOREMOD_THREADS: expected a number of CPU threads, at least 1, found '", text, "'");
  return std::min(threads, *most);
}

}  // namespace scoremod
