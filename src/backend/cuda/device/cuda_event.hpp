#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

namespace scoremod::backend::cuda {

/// An event behind the work that a stream has so far, which any thread may ask while its context is current. Every call
/// throws Error(kEnvironment) with CUDA's own text, also where that work failed, or was lost with its context.
class CudaEvent {
 public:
  explicit CudaEvent(void* stream);
  ~CudaEvent();
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  /// Returns once the work is done.
  void wait() const;
  /// Whether the work is done; it waits for nothing.
  bool has_passed() const;
  /// Lets later work on a stream, which captures no graph, begin once the work is done. The host goes on.
  void hold_back(void* stream) const;

 private:
  void require_there() const;

  std::uint64_t context_;  ///< CUDA crashes at an event whose context is gone (tools/device/reset_probe.py)
  cudaEvent_t event_ = nullptr;
};

}  // namespace scoremod::backend::cuda
