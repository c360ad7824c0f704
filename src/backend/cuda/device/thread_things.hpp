#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace scoremod::backend::cuda {

/// Streams and library handles that threads are done with, by CUDA context, for the next thread that needs one.
/// Nothing is ever destroyed: cublasDestroy() ends the captures of other threads, and cudnnDestroy() waits for the
/// whole device (tools/device/capture_probe.cu).
class IdleThings {
 public:
  /// Null where there is none.
  void* take(std::uint64_t context);
  void give_back(std::uint64_t context, void* thing);

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::vector<void*>> by_context_;
};

/// A thread's streams or handles, one for each context; they become idle when the thread ends.
class ThreadThings {
 public:
  explicit ThreadThings(IdleThings& idle) : idle_(idle) {}
  ~ThreadThings();
  ThreadThings(const ThreadThings&) = delete;
  ThreadThings& operator=(const ThreadThings&) = delete;

  /// The current context's. `make` makes one where none is idle, and may throw.
  void* of_current_context(void* (*make)());

 private:
  IdleThings& idle_;
  std::map<std::uint64_t, void*> by_context_;
};

/// The calling thread's thing of the current context; `Maker::make()` makes one.
template <class Maker>
void* thing_of_thread() {
  static IdleThings& idle = *new IdleThings;  // threads may end while the process does
  static thread_local ThreadThings things(idle);
  return things.of_current_context(Maker::make);
}

}  // namespace scoremod::backend::cuda
