#include "backend/memory_space.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "scoremod/error.hpp"

#include "base/cpu_threads.hpp"
#include "base/fail.hpp"

namespace scoremod {

const char* to_string(MemoryKind kind) { return kind == MemoryKind::kHost ? "host" : "cuda"; }

}  // namespace scoremod

namespace scoremod::backend {
namespace {

constexpr std::align_val_t kHostAlignment{64};

class HostMemory final : public MemorySpace {
 public:
  MemoryKind kind() const override { return MemoryKind::kHost; }
  std::size_t alignment() const override { return 1; }
  void* allocate(std::size_t bytes, void*) const override { return ::operator new(bytes, kHostAlignment); }
  void release(void* data, void*) const noexcept override { ::operator delete(data, kHostAlignment); }
  void copy_in(void* to, const void* host, std::size_t bytes) const override { std::memcpy(to, host, bytes); }
  void copy_out(void* host, const void* from, std::size_t bytes) const override { std::memcpy(host, from, bytes); }
  void wait(void*) const override {}
  int current_device() const override { return 0; }
  DeviceProperties describe() const override {
    DeviceProperties host;
    host.name = "host";
    host.multiprocessors = cpu_cores();
    return host;
  }
  void make_current(int device) const override {
    if (device != 0) fail_argument("device: expected 0, the host, found ", device);
  }
  std::string objection(const void*, int) const override { return {}; }
};

class HostStopwatch final : public Stopwatch {
 public:
  HostStopwatch(const MemorySpace& space, void* stream) : space_(space), stream_(stream) {}

  void start() override {
    space_.wait(stream_);
    start_ = std::chrono::steady_clock::now();
  }

  double stop() override {
    space_.wait(stream_);
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  const MemorySpace& space_;
  void* stream_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace

std::unique_ptr<Stopwatch> MemorySpace::stopwatch(void* stream) const {
  return std::make_unique<HostStopwatch>(*this, stream);
}

const MemorySpace& host_memory() {
  static const HostMemory memory;
  return memory;
}

DeviceScope::DeviceScope(const MemorySpace& space, int device) : space_(space) {
  const int before = space.current_device();
  if (before == device) return;
  space.make_current(device);
  before_ = before;
}

DeviceScope::DeviceScope(const MemorySpace& space, std::optional<int> device)
    : DeviceScope(space, device ? *device : space.current_device()) {}

DeviceScope::~DeviceScope() {
  if (!before_) return;
  try {
    space_.make_current(*before_);
  } catch (const Error&) {
    // It was current before. A failure here is of work that was enqueued earlier; the next call reports it.
  }
}

OwnedMemory::OwnedMemory(const MemorySpace& space, std::size_t bytes, void* stream)
    : space_(&space), data_(bytes == 0 ? nullptr : space.allocate(bytes, stream)), bytes_(bytes), stream_(stream) {}

OwnedMemory::OwnedMemory(const MemorySpace& space, std::size_t bytes)
    : OwnedMemory(space, bytes, bytes == 0 ? nullptr : space.own_stream()) {}

OwnedMemory::OwnedMemory(OwnedMemory&& other) noexcept { *this = std::move(other); }

OwnedMemory& OwnedMemory::operator=(OwnedMemory&& other) noexcept {
  std::swap(space_, other.space_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(stream_, other.stream_);
  return *this;
}

OwnedMemory::~OwnedMemory() {
  if (data_ != nullptr) space_->release(data_, stream_);
}

}  // namespace scoremod::backend
