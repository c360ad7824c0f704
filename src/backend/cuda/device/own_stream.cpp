#include "backend/cuda/device/own_stream.hpp"

#include <cstdint>
#include <map>
#include <mutex>

#include "backend/cuda/device/context.hpp"
#include "backend/cuda/device/runtime_call.hpp"
#include "backend/cuda/device/thread_things.hpp"

namespace scoremod::backend::cuda {
namespace {

/// The context of each stream that the library has made. None is destroyed; a context that is made anew may have one at
/// the address of an old one.
struct Contexts {
  std::mutex mutex;
  std::map<void*, std::uint64_t> of_stream;
};

/// Never destroyed: threads may free memory while the process ends.
Contexts& contexts() {
  static auto& made = *new Contexts;
  return made;
}

struct OwnStream {
  static void* make() {
    const RelaxedCapture relaxed;
    cudaStream_t stream = nullptr;
    check_runtime(SCOREMOD_CUDART(cudaStreamCreateWithFlags)(&stream, cudaStreamNonBlocking),
                  "cudaStreamCreateWithFlags");
    const std::uint64_t context = current_context();
    const std::lock_guard lock(contexts().mutex);
    contexts().of_stream[stream] = context;
    return stream;
  }
};

}  // namespace

void* own_stream() { return thing_of_thread<OwnStream>(); }

bool is_gone(void* stream) noexcept {
  std::uint64_t context = 0;
  {
    const std::lock_guard lock(contexts().mutex);
    const auto found = contexts().of_stream.find(stream);
    if (found == contexts().of_stream.end()) return false;
    context = found->second;
  }
  return !is_there(context);
}

void wait_for_own_stream() {
  const RelaxedCapture relaxed;
  check_runtime(SCOREMOD_CUDART(cudaStreamSynchronize)(static_cast<cudaStream_t>(own_stream())),
                "cudaStreamSynchronize");
}

}  // namespace scoremod::backend::cuda
