#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "scoremod/attention.hpp"

#include "backend/device_properties.hpp"
#include "backend/target_context.hpp"

namespace scoremod::backend {

/// Measures the time of work that is enqueued between start() and stop(). Both may throw Error(kEnvironment).
class Stopwatch {
 public:
  virtual ~Stopwatch() = default;
  virtual void start() = 0;
  /// Milliseconds, once everything since start() is done.
  virtual double stop() = 0;
};

/// A point in the work of a stream.
class StreamEvent {
 public:
  virtual ~StreamEvent() = default;
  /// Returns once the work before it is done. Several threads may wait at once, each with the event's device current.
  /// Throws Error(kEnvironment) if the work failed.
  virtual void wait() const = 0;
};

/// Whether a stream captures a graph.
enum class StreamCapture : std::uint8_t {
  kNone,
  kGoesOn,
  kEnded,  ///< by an error, of whatever call: nothing can be added, and the graph is lost
};

/// A scope that a thread needs while it plans; see MemorySpace::enter_planning().
class PlanningScope {
 public:
  virtual ~PlanningScope() = default;
};

/// The memory in which a backend's calls find their tensors and their workspace. Every function may throw
/// Error(kEnvironment) with the device's own text.
class MemorySpace {
 public:
  virtual ~MemorySpace() = default;
  virtual MemoryKind kind() const = 0;
  /// Every tensor of a call starts at a multiple of this many bytes, or of its element's size where that is larger.
  virtual std::size_t alignment() const = 0;

  /// The stream of the library's own work on the calling thread, which disturbs no other stream. Null on the host,
  /// which ignores streams.
  virtual void* own_stream() const { return nullptr; }
  /// At least 64-byte aligned, for later work on `stream`, and for other streams once they have waited for it.
  /// std::bad_alloc or Error(kEnvironment) if there is not enough.
  virtual void* allocate(std::size_t bytes, void* stream) const = 0;
  /// Frees it once the earlier work on `stream` is done.
  virtual void release(void* data, void* stream) const noexcept = 0;
  /// Copies run on own_stream(), after its earlier work, and return when the bytes are there.
  virtual void copy_in(void* to, const void* host, std::size_t bytes) const = 0;
  virtual void copy_out(void* host, const void* from, std::size_t bytes) const = 0;
  /// Waits for the work on a stream; null is the default stream.
  virtual void wait(void* stream) const = 0;
  /// An event behind the work that a stream has so far. Null where calls return when their work is done.
  virtual std::unique_ptr<StreamEvent> record_event(void* /*stream*/) const { return nullptr; }
  /// Whether a stream captures a graph, whose replays may come at any time.
  virtual StreamCapture capture(void* /*stream*/) const { return StreamCapture::kNone; }
  bool is_capturing(void* stream) const { return capture(stream) != StreamCapture::kNone; }
  /// Measures work on a stream. By default it uses the host's clock, and waits for the stream.
  virtual std::unique_ptr<Stopwatch> stopwatch(void* stream) const;

  /// The ordinal of the device that the calling thread's calls go to; the host has one device, 0.
  virtual int current_device() const = 0;
  /// The id of the context that a loaded plan belongs to: the calling thread's CUDA context; 0 on the host.
  virtual std::uint64_t context() const { return 0; }
  /// The calling thread's context, if it has one. Otherwise another thread begins to make that of its device.
  virtual TargetContext begin_context() const { return context(); }
  /// The properties of the current device.
  virtual DeviceProperties describe() const = 0;
  /// Lets the calling thread, for the scope's life, build, load and try plans while other threads or it itself capture
  /// graphs. Null where that needs nothing.
  virtual std::unique_ptr<PlanningScope> enter_planning() const { return nullptr; }
  /// Throws Error(kInvalidArgument) when there is no such device.
  virtual void make_current(int device) const = 0;

  /// Why a pointer is unfit for a call on the current device, whose ordinal is `device`: "memory of the host", say.
  /// Empty when nothing is known against it. Every call asks it of every pointer.
  virtual std::string objection(const void* data, int device) const = 0;
};

const MemorySpace& host_memory();

/// Makes a device current on the calling thread for the object's life.
class DeviceScope {
 public:
  DeviceScope(const MemorySpace& space, int device);
  /// Changes nothing when no device is given.
  DeviceScope(const MemorySpace& space, std::optional<int> device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  const MemorySpace& space_;
  std::optional<int> before_;  ///< absent when it was current already
};

/// Memory of a space, released with its owner.
class OwnedMemory {
 public:
  OwnedMemory() = default;
  /// For work on `stream`, which outlives the memory.
  OwnedMemory(const MemorySpace& space, std::size_t bytes, void* stream);
  /// For work on the space's own stream.
  OwnedMemory(const MemorySpace& space, std::size_t bytes);
  OwnedMemory(OwnedMemory&& other) noexcept;
  OwnedMemory& operator=(OwnedMemory&& other) noexcept;
  ~OwnedMemory();

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::size_t bytes() const { return bytes_; }

 private:
  const MemorySpace* space_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  void* stream_ = nullptr;
};

}  // namespace scoremod::backend
