#include "load_inputs.hpp"

#include <unistd.h>

#include "fail.hpp"
#include "npy.hpp"

namespace scoremod::cli {
namespace {

/// A problem may be valid and far too large. Without this check the system would not refuse the memory, but end the
/// process.
void check_memory(const std::vector<TensorInfo>& tensors) {
  const double machine = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  double needed = 0;
  for (const TensorInfo& tensor : tensors) needed += static_cast<double>(tensor.bytes);
  constexpr double kGiB = 1 << 30;
  if (machine <= 0 || needed <= machine) return;
  input::fail(ErrorCode::kEnvironment, "the problem's tensors take ", needed / kGiB, " GiB, this machine has ",
              machine / kGiB, " GiB of memory; make the problem smaller");
}

}  // namespace

ProblemInputs load_inputs(const ProblemSource& source, std::optional<std::uint64_t> seed) {
  check_memory(tensors_of(source.file.problem));
  return make_inputs(source.file.problem, source.file.inputs, seed.value_or(source.file.seed),
                     input::npy_files(source.folder));
}

}  // namespace scoremod::cli
