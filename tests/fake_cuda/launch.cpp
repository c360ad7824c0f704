#include <algorithm>
#include <bit>
#include <cstring>
#include <unistd.h>

#include "fake_cuda/state.hpp"

namespace scoremod::test::fake_cuda {
namespace {

constexpr std::size_t kWord = sizeof(std::uint64_t);

/// Refuses a launch beyond the limits of the device or the kernel.
void check_limits(Call& call, const Function& function, const Sizes& grid, const Sizes& block, unsigned shared_bytes) {
  const Kernel& kernel = function.kernel;
  const int device = function.module->device;
  const auto most = [&](const char* property, std::size_t axis) {
    return state().devices[static_cast<std::size_t>(device)].at(property).at(axis).get<std::int64_t>();
  };
  for (std::size_t axis = 0; axis < 3; ++axis) {
    if (grid[axis] == 0 || grid[axis] > most("maxGridSize", axis))
      call.refuse(CUDA_ERROR_INVALID_VALUE, kernel.name, ": ", grid[axis], " blocks along axis ", axis);
    if (block[axis] == 0 || block[axis] > most("maxBlockSize", axis))
      call.refuse(CUDA_ERROR_INVALID_VALUE, kernel.name, ": ", block[axis], " threads along axis ", axis);
  }
  const auto limit = [&](const char* property) { return described(device, property); };
  const std::int64_t threads = std::int64_t{block[0]} * block[1] * block[2];
  std::int64_t most_threads = limit("maxThreadsPerBlock");
  if (kernel.max_threads != 0) most_threads = std::min(most_threads, kernel.max_threads);
  if (threads > most_threads)
    call.refuse(CUDA_ERROR_INVALID_VALUE, kernel.name, ": ", threads, " threads, at most ", most_threads);
  // A warp's registers come in units of 256.
  const std::int64_t warp = limit("warpSize"), of_warp = (kernel.registers * warp + 255) / 256 * 256;
  if ((threads + warp - 1) / warp * of_warp > limit("regsPerBlock"))
    call.refuse(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, kernel.name, ": ", threads, " threads of ", kernel.registers,
                " registers");
  const std::int64_t shared = std::int64_t{shared_bytes} + kernel.static_shared_bytes;
  if (shared > function.shared_limit)
    call.refuse(CUDA_ERROR_INVALID_VALUE, kernel.name, ": ", shared, " bytes of shared memory, at most ",
                function.shared_limit);
}

}  // namespace

bool copy_if_readable(const void* from, std::byte* to, std::size_t bytes) {
  // The kernel reads the memory, and says so where it cannot. A pipe holds at least 4096 bytes.
  constexpr std::size_t kAtOnce = 4096;
  int ends[2];
  if (pipe(ends) != 0) return false;
  bool is_readable = true;
  for (std::size_t done = 0; done < bytes && is_readable; done += kAtOnce) {
    const std::size_t piece = std::min(kAtOnce, bytes - done);
    is_readable = write(ends[1], static_cast<const std::byte*>(from) + done, piece) == static_cast<ssize_t>(piece) &&
                  read(ends[0], to + done, piece) == static_cast<ssize_t>(piece);
  }
  close(ends[0]);
  close(ends[1]);
  return is_readable;
}

void check_addresses(Call& call, const std::string& kernel, int device, const std::vector<std::uint64_t>& words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::byte byte;
    if (State::is_device_address(words[i])) {
      const Allocation* found = state().allocation_of(words[i], 1);
      if (found == nullptr)
        call.refuse(CUDA_ERROR_ILLEGAL_ADDRESS, kernel, ": byte ", i * kWord,
                    " of the parameters points to memory that is not allocated");
      else if (found->device != device)
        call.refuse(CUDA_ERROR_ILLEGAL_ADDRESS, kernel, ": byte ", i * kWord,
                    " of the parameters points to memory of device ", found->device);
    } else if (copy_if_readable(std::bit_cast<const void*>(words[i]), &byte, 1)) {
      call.refuse(CUDA_ERROR_ILLEGAL_ADDRESS, kernel, ": byte ", i * kWord,
                  " of the parameters points to memory of the host");
    }
  }
}

std::vector<std::uint64_t> check_launch(Call& call, const Function& function, const Sizes& grid, const Sizes& block,
                                        unsigned shared_bytes, void** parameters) {
  check_limits(call, function, grid, block, shared_bytes);
  const Kernel& kernel = function.kernel;
  const std::size_t count = kernel.parameters.size();
  std::vector<void*> pointers(count);
  if (!copy_if_readable(reinterpret_cast<const std::byte*>(parameters), reinterpret_cast<std::byte*>(pointers.data()),
                        count * sizeof(void*))) {
    call.refuse(CUDA_ERROR_INVALID_VALUE, kernel.name, ": expected ", count, " parameters, found fewer");
    return {};
  }
  std::vector<std::uint64_t> words((kernel.parameter_bytes() + kWord - 1) / kWord);
  for (std::size_t i = 0; i < count; ++i) {
    const Kernel::Parameter& parameter = kernel.parameters[i];
    std::byte* to = reinterpret_cast<std::byte*>(words.data()) + parameter.offset;
    if (!copy_if_readable(pointers[i], to, parameter.bytes))
      call.refuse(CUDA_ERROR_INVALID_VALUE, kernel.name, ": not all of the ", parameter.bytes, " bytes of parameter ",
                  i, " are memory");
  }
  check_addresses(call, kernel.name, function.module->device, words);
  return words;
}

}  // namespace scoremod::test::fake_cuda
