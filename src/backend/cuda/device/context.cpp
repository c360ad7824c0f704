#include "backend/cuda/device/context.hpp"

#include <atomic>
#include <map>
#include <mutex>

#include "backend/cuda/device/driver_call.hpp"
#include "backend/cuda/device/runtime_call.hpp"
#include "base/fail.hpp"

namespace scoremod::backend::cuda {
namespace {

void* driver_context() {
  CUcontext context = nullptr;
  const CUresult status = SCOREMOD_DRIVER(cuCtxGetCurrent)(&context);
  // The process's first call: the runtime initializes the driver when it makes the primary context.
  if (status == CUDA_ERROR_NOT_INITIALIZED) return nullptr;
  check_driver(status, "cuCtxGetCurrent");
  return context;
}

void make_primary_current() {
  const RelaxedCapture relaxed;
  check_runtime(SCOREMOD_CUDART(cudaFree)(nullptr), "cudaFree");
}

std::uint64_t driver_id(void* context) {
  unsigned long long id = 0;
  const CUresult status = SCOREMOD_DRIVER(cuCtxGetId)(static_cast<CUcontext>(context), &id);
  // A primary context keeps its handle when its device is reset. The runtime makes it anew when it is called next.
  if (status == CUDA_ERROR_CONTEXT_IS_DESTROYED) return 0;
  check_driver(status, "cuCtxGetId");
  return id;
}

const ContextCalls& driver_calls() {
  if (!library().available) fail_environment(library().reason);
  static constexpr ContextCalls kCalls{driver_context, make_primary_current, driver_id};
  return kCalls;
}

/// The contexts that things of the library were made in, by id.
class SeenContexts {
 public:
  void add(std::uint64_t id) {
    static thread_local std::uint64_t last = 0;
    if (id == last) return;
    CUcontext handle = nullptr;
    check_driver(SCOREMOD_DRIVER(cuCtxGetCurrent)(&handle), "cuCtxGetCurrent");
    const std::lock_guard lock(mutex_);
    handles_.emplace(id, handle);
    count_.store(handles_.size(), std::memory_order_release);
    last = id;
  }

  CUcontext find(std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    const auto found = handles_.find(id);
    return found == handles_.end() ? nullptr : found->second;
  }

  std::size_t count() const { return count_.load(std::memory_order_acquire); }

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, CUcontext> handles_;
  std::atomic<std::size_t> count_ = 0;
};

/// Never destroyed: threads may free things of a device while the process ends.
SeenContexts& seen_contexts() {
  static auto& made = *new SeenContexts;
  return made;
}

}  // namespace

std::optional<std::uint64_t> context_of_thread(const ContextCalls& calls) {
  void* const context = calls.current();
  if (context == nullptr) return std::nullopt;
  const std::uint64_t id = calls.id(context);
  return id == 0 ? std::nullopt : std::optional(id);
}

std::uint64_t current_context(const ContextCalls& calls) {
  if (const auto own = context_of_thread(calls)) return *own;
  calls.make_primary_current();
  const auto made = context_of_thread(calls);
  if (!made) fail_environment("the calling thread has no CUDA context, and its device gave it none");
  return *made;
}

std::uint64_t current_context() {
  const std::uint64_t id = current_context(driver_calls());
  seen_contexts().add(id);
  return id;
}

std::optional<std::uint64_t> context_of_thread() { return context_of_thread(driver_calls()); }

bool is_there(std::uint64_t context) noexcept {
  const CUcontext handle = seen_contexts().find(context);
  unsigned long long id = 0;
  return handle != nullptr && SCOREMOD_DRIVER(cuCtxGetId)(handle, &id) == CUDA_SUCCESS && id == context;
}

void within(std::uint64_t context, const std::function<void()>& body) {
  // Its handle may be that of a newer context, in which an address of this one is another thing.
  if (!is_there(context)) return;
  CUcontext previous = nullptr;
  if (SCOREMOD_DRIVER(cuCtxPushCurrent)(seen_contexts().find(context)) != CUDA_SUCCESS) return;
  body();
  SCOREMOD_DRIVER(cuCtxPopCurrent)(&previous);
}

std::size_t contexts_seen() noexcept { return seen_contexts().count(); }

void require_context(std::uint64_t context) {
  if (current_context() == context) return;
  if (!is_there(context)) {
    fail_environment(
        "this attention was compiled in a CUDA context that is gone: its device was reset (cudaDeviceReset), or the "
        "context was destroyed; compile it again");
  }
  fail_argument(
      "this attention was compiled in another CUDA context than the calling thread's: make that one current, or "
      "compile once for each context");
}

}  // namespace scoremod::backend::cuda
