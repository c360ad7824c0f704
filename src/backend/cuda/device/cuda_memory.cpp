#include "backend/cuda/device/cuda_memory.hpp"

#include <cstddef>
#include <cstdint>
#include <future>
#include <utility>

#include "backend/cuda/device/context.hpp"
#include "backend/cuda/device/cuda_event.hpp"
#include "backend/cuda/device/device.hpp"
#include "backend/cuda/device/driver_call.hpp"
#include "backend/cuda/device/known_ranges.hpp"
#include "backend/cuda/device/memory_pool.hpp"
#include "backend/cuda/device/own_stream.hpp"
#include "backend/cuda/device/runtime_call.hpp"
#include "base/fail.hpp"
#include "base/timeline.hpp"

namespace scoremod::backend::cuda {
namespace {

constexpr std::size_t kTensorAlignment = 16;

class EventStopwatch final : public Stopwatch {
 public:
  explicit EventStopwatch(void* stream) : timer_(stream) {}
  void start() override { timer_.start(); }
  double stop() override { return timer_.stop(); }

 private:
  DeviceTimer timer_;
};

class CudaStreamEvent final : public StreamEvent {
 public:
  explicit CudaStreamEvent(void* stream) : event_(stream) {}
  void wait() const override { event_.wait(); }

 private:
  CudaEvent event_;
};

/// Plans are loaded and tried on streams that nobody captures, while other threads may capture theirs.
class CudaPlanning final : public PlanningScope {
 private:
  RelaxedCapture relaxed_;
};

/// The beginning and the bytes of the allocation that an address of a device lies in; memory that is no allocation of
/// its own is known by this address alone.
std::pair<std::uintptr_t, std::size_t> allocation_of(const void* data) {
  CUdeviceptr begin = 0;
  std::size_t bytes = 0;
  const auto address = reinterpret_cast<CUdeviceptr>(data);
  const CUresult status = SCOREMOD_DRIVER(cuMemGetAddressRange)(&begin, &bytes, address);
  if (status == CUDA_ERROR_NOT_FOUND || status == CUDA_ERROR_INVALID_VALUE) return {address, 1};
  check_driver(status, "cuMemGetAddressRange");
  if (address - begin >= bytes) return {address, 1};
  return {begin, bytes};
}

class CudaMemory final : public MemorySpace {
 public:
  MemoryKind kind() const override { return MemoryKind::kCuda; }
  std::size_t alignment() const override { return kTensorAlignment; }

  void* own_stream() const override { return cuda::own_stream(); }

  void* allocate(std::size_t bytes, void* stream) const override {
    if (is_capturing(stream)) {
      fail_environment("CUDA graph capture needs a workspace from the caller: expected one of at least ", bytes,
                       " bytes, found none or a smaller one; pass one of forward_workspace_bytes() or "
                       "backward_workspace_bytes() to each call that is captured");
    }
    return allocate_device_memory(bytes, stream);
  }
  void release(void* data, void* stream) const noexcept override { release_device_memory(data, stream); }

  void copy_in(void* to, const void* host, std::size_t bytes) const override {
    copy(to, host, bytes, cudaMemcpyHostToDevice);
  }
  void copy_out(void* host, const void* from, std::size_t bytes) const override {
    copy(host, from, bytes, cudaMemcpyDeviceToHost);
  }

  void wait(void* stream) const override {
    const RelaxedCapture relaxed;
    check_runtime(SCOREMOD_CUDART(cudaStreamSynchronize)(static_cast<cudaStream_t>(stream)), "cudaStreamSynchronize");
  }

  std::unique_ptr<StreamEvent> record_event(void* stream) const override {
    return std::make_unique<CudaStreamEvent>(stream);
  }

  StreamCapture capture(void* stream) const override {
    if (stream == nullptr) return StreamCapture::kNone;  // the default stream cannot
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check_runtime(SCOREMOD_CUDART(cudaStreamIsCapturing)(static_cast<cudaStream_t>(stream), &status),
                  "cudaStreamIsCapturing");
    switch (status) {
      case cudaStreamCaptureStatusActive: return StreamCapture::kGoesOn;
      case cudaStreamCaptureStatusInvalidated: return StreamCapture::kEnded;
      default: return StreamCapture::kNone;
    }
  }

  std::unique_ptr<Stopwatch> stopwatch(void* stream) const override { return std::make_unique<EventStopwatch>(stream); }

  int current_device() const override { return current_device_ordinal(); }
  std::uint64_t context() const override { return current_context(); }
  TargetContext begin_context() const override {
    if (const auto own = context_of_thread()) return *own;
    const auto make = [this, device = current_device()] {
      const TimedStep step("make the context");
      make_current(device);
      return context();
    };
    return TargetContext(std::async(std::launch::async, make).share());
  }
  DeviceProperties describe() const override { return describe_current_device(); }
  std::unique_ptr<PlanningScope> enter_planning() const override { return std::make_unique<CudaPlanning>(); }

  void make_current(int device) const override {
    int count = 0;
    check_runtime(SCOREMOD_CUDART(cudaGetDeviceCount)(&count), "cudaGetDeviceCount");
    if (device < 0 || device >= count) {
      fail_argument("device: expected a CUDA device from 0 to ", count - 1, ", found ", device);
    }
    check_runtime(SCOREMOD_CUDART(cudaSetDevice)(device), "cudaSetDevice");
  }

  std::string objection(const void* data, int device) const override {
    static thread_local KnownRanges known;
    static thread_local std::size_t known_in = 0;
    if (const std::size_t contexts = contexts_seen(); known_in != contexts) {
      known = {};
      known_in = contexts;
    }
    if (known.contains(data, device)) return {};
    cudaPointerAttributes attributes{};
    check_runtime(SCOREMOD_CUDART(cudaPointerGetAttributes)(&attributes, data), "cudaPointerGetAttributes");
    switch (attributes.type) {
      case cudaMemoryTypeDevice: break;
      case cudaMemoryTypeManaged: return {};
      case cudaMemoryTypeHost: return "memory of the host";
      default: return "memory that CUDA does not know: of the host, or of a device and freed by now";
    }
    if (attributes.device != device) {
      return concat("memory of device ", attributes.device, " where device ", device, " runs the call");
    }
    const auto [begin, bytes] = allocation_of(data);
    known.add(data, begin, bytes, device);
    return {};
  }

 private:
  static void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    const RelaxedCapture relaxed;
    const auto stream = static_cast<cudaStream_t>(cuda::own_stream());
    check_runtime(SCOREMOD_CUDART(cudaMemcpyAsync)(to, from, bytes, kind, stream), "cudaMemcpyAsync");
    wait_for_own_stream();
  }
};

}  // namespace

const MemorySpace& cuda_memory() {
  static const CudaMemory memory;
  return memory;
}

}  // namespace scoremod::backend::cuda
