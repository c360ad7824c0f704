#include "backend/cuda/device/own_stream.hpp"

#include "backend/cuda/device/runtime_call.hpp"
#include "backend/cuda/device/thread_things.hpp"

namespace scoremod::backend::cuda {
namespace {

struct OwnStream {
  static void* make() {
    const RelaxedCapture relaxed;
    cudaStream_t stream = nullptr;
    check_runtime(SCOREMOD_CUDART(cudaStreamCreateWithFlags)(&stream, cudaStreamNonBlocking),
                  "cudaStreamCreateWithFlags");
    return stream;
  }
};

}  // namespace

void* own_stream() { return thing_of_thread<OwnStream>(); }

void wait_for_own_stream() {
  const RelaxedCapture relaxed;
  check_runtime(SCOREMOD_CUDART(cudaStreamSynchronize)(static_cast<cudaStream_t>(own_stream())),
                "cudaStreamSynchronize");
}

}  // namespace scoremod::backend::cuda
